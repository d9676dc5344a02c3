"""Defense: what a client does to the messages it sends and receives, and to its training."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedspill.federation.local import LocalTraining
from fedspill.messages import Message


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a client makes of a model it received."""

    action: Literal["accept", "repair", "refuse"]
    why: str = ""
    model: Message | None = None  # what to train on instead, when repaired


ACCEPT = Verdict("accept")


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy claim and the accountant it rests on."""

    epsilon: float
    delta: float
    accountant: str


class Defense(ABC):
    """One defense. Concrete: a frozen dataclass, its fields are its options. Each hook does nothing by default."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ()  # options an audit tries, weakest first

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        """What leaves the client instead of `message`: clipped, noised, compressed, ..."""
        return message

    def incoming(self, message: Message, previous: Message | None) -> Verdict:
        """Inspects a received model against the one received before."""
        return ACCEPT

    def local(self, training: LocalTraining) -> LocalTraining:
        """The local training that clients do instead."""
        return training

    def claims(self) -> Guarantee | None:
        """The guarantee this defense gives, if it gives one."""
        return None
