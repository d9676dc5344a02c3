"""Frozen head: the last layer stays as handed out, nothing of it leaves the client (Oh et al., FedBABU, 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch

from fedspill.defense import Check, Defense, SentMessages, WireEffect
from fedspill.defenses.head import head_names
from fedspill.federation.guarded import StepRule, guarded
from fedspill.messages import Message
from fedspill.training import LocalTraining, Tensors


@final
@dataclass(frozen=True)
class FrozenHead(Defense):
    """The body learns to suit a head that never changes; what = "bias" freezes the last bias alone, as 003 removes it.

    It takes away what most label attacks read. The layers before still carry the labels: they are moved by the head's
    own weights, which everybody knows, so an attacker who knows of the defense reads them there.
    """

    name: ClassVar[str] = "frozen-head"
    title: ClassVar[str] = "Neither train nor send the last layer"
    paper: ClassVar[str] = "003"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"what": "head"},)

    what: Literal["head", "bias"] = "head"

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        return replace(message, tensors=self.still(dict(message.tensors)))

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _NoGradient(self))

    def still(self, tensors: Tensors) -> Tensors:
        """The same tensors with zeros where nothing is to move."""
        return tensors | {name: torch.zeros_like(tensors[name]) for name in self.names(tensors)}

    def names(self, tensors: Tensors) -> tuple[str, ...]:
        head = head_names(tensors)
        return head if self.what == "head" else head[1:]

    def effect(self) -> WireEffect:
        return WireEffect(no_last_bias=True, no_last_layer=self.what == "head")

    def verify(self, sent: SentMessages) -> Check:
        for message in sent.messages:
            names = self.names(dict(message.tensors))
            if not names and self.what == "head":
                return Check(self.name, False, f"{message.sender} sent no layer that could be the last")
            moving = [name for name in names if bool(message.tensors[name].any())]
            if moving:
                said = f"a change of {moving[0]!r} in round {message.round}, which was to be frozen"
                return Check(self.name, False, f"{message.sender} sent {said}")
        return Check(
            self.name, True if sent.messages else None, f"{len(sent.messages)} messages leave the {self.what} alone"
        )


@final
@dataclass(frozen=True)
class _NoGradient(StepRule):
    defense: FrozenHead

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        return self.defense.still(gradients)
