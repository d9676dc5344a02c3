"""Larger batches: fewer local steps on more samples each, so that single samples weigh less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from fedspill.defense import Check, Defense, SentMessages
from fedspill.errors import UsageError
from fedspill.training import LocalTraining


@final
@dataclass(frozen=True)
class LargerBatches(Defense):
    """Multiplies the samples of a local step by `factor`, and the learning rate with them if `scale_lr`."""

    name: ClassVar[str] = "larger-batches"
    title: ClassVar[str] = "More samples in a local step"
    paper: ClassVar[str] = "003"

    factor: int = 4
    scale_lr: bool = False

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise UsageError(f"factor is a whole number from 1 up, got {self.factor}.")

    def local(self, training: LocalTraining) -> LocalTraining:
        rate = training.lr * (self.factor if self.scale_lr else 1)
        return replace(training, batch_size=training.batch_size * self.factor, lr=rate)

    def verify(self, sent: SentMessages) -> Check:
        if self.factor == 1:
            return Check(self.name, False, "changes nothing: factor is 1")
        return Check(self.name, None, "a message does not say how many samples a step had")
