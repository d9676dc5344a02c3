"""Label smoothing: clients learn a little of every class from each sample (Szegedy et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedspill.defense import Check, Defense, SentMessages, WireEffect
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.training import LocalTraining


@final
@dataclass(frozen=True)
class LabelSmoothing(Defense):
    """The target of a sample is 1 - amount for its class, and amount is spread evenly over all.

    It shrinks what a sample adds to its class by a factor that is public: an attacker who knows it divides by it.
    """

    name: ClassVar[str] = "label-smoothing"
    title: ClassVar[str] = "Smooth the labels"
    paper: ClassVar[str] = ""

    amount: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.amount < 1:
            raise UsageError(f"amount is a share in [0, 1), got {self.amount}.")

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _Smooth(self.amount))

    def effect(self) -> WireEffect:
        return WireEffect(smoothed=self.amount)

    def verify(self, sent: SentMessages) -> Check:
        if self.amount == 0:
            return Check(self.name, False, "smooths nothing: amount is 0")
        return Check(self.name, None, "smooth targets leave no mark on a message")


@final
@dataclass(frozen=True)
class _Smooth(StepRule):
    amount: float

    def targets(self, targets: Tensor) -> Tensor:
        return (1 - self.amount) * targets + self.amount / targets.shape[1]
