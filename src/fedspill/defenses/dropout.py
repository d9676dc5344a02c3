"""Dropout on what the last layer reads, while clients train (papers 000 and 002 discuss it as a defense)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedspill.defense import Check, Defense, SentMessages, WireEffect
from fedspill.defenses.head import head_module
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.training import LocalTraining


@final
@dataclass(frozen=True)
class Dropout(Defense):
    """What the last layer reads is set to zero with chance `rate`, anew in every step; the model stays as it was."""

    name: ClassVar[str] = "dropout"
    title: ClassVar[str] = "Dropout before the last layer"
    paper: ClassVar[str] = "000"

    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise UsageError(f"rate is a chance in [0, 1), got {self.rate}.")

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _DropFeatures(self.rate))

    def effect(self) -> WireEffect:
        return WireEffect(features_dropped=self.rate)

    def verify(self, sent: SentMessages) -> Check:
        if self.rate == 0:
            return Check(self.name, False, "drops nothing: rate is 0")
        return Check(self.name, None, "dropout inside local training leaves no mark on a message")


@final
@dataclass(frozen=True)
class _DropFeatures(StepRule):
    rate: float

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        head = head_module(model)
        return [] if head is None else [head.register_forward_pre_hook(self._drop)]

    def _drop(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (nn.functional.dropout(inputs[0], self.rate), *inputs[1:])
