"""Metrics for how many clients own a label (paper 002): within one client, within 5 % of the round, mean error.

An abort counts as a miss. The no-access guesses are a constant count, the true mean over all rounds and labels, which
is more than an outsider knows, and each label's own mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.round_truth import Owned, true_owners
from fedspill.metric import Measured, Metric
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class WithinOne(Metric[ClassQuantities]):
    """Share of labels whose number of owners is guessed with an error of at most 1 (the paper's Metric_1)."""

    name: ClassVar[str] = "quantity-within-one"
    title: ClassVar[str] = "Owners of a label, within one"
    paper: ClassVar[str] = "002"
    guesses = ClassQuantities
    perfect: ClassVar[float] = 1.0

    owned: Owned = "main"
    rounded: bool = False  # the paper does not say; worth up to 20 points
    bound: float = 1.0

    def measure(self, guess: ClassQuantities, truth: Truth) -> Measured:
        real = true_owners(guess.of, truth, guess.me, self.owned, guess.clients.shape[1]).double()
        found = guess.clients.round() if self.rounded else guess.clients
        return _within(found, real, torch.full((len(real), 1), self.bound))


@final
@dataclass(frozen=True)
class WithinFivePercent(Metric[ClassQuantities]):
    """The same within 5 % of the clients of the round (the paper's Metric_%)."""

    name: ClassVar[str] = "quantity-within-5-percent"
    title: ClassVar[str] = "Owners of a label, within 5 % of the round"
    paper: ClassVar[str] = "002"
    guesses = ClassQuantities
    perfect: ClassVar[float] = 1.0

    owned: Owned = "main"

    def measure(self, guess: ClassQuantities, truth: Truth) -> Measured:
        real = true_owners(guess.of, truth, guess.me, self.owned, guess.clients.shape[1]).double()
        size = torch.tensor([[len(truth.get(origin, "clients"))] for origin in guess.of])
        return _within(guess.clients, real, 0.05 * size)


@final
@dataclass(frozen=True)
class QuantityError(Metric[ClassQuantities]):
    """Mean absolute error of the number of owners, over labels; aborted ones count as a guess of 0."""

    name: ClassVar[str] = "quantity-error"
    title: ClassVar[str] = "Error of the owners of a label"
    guesses = ClassQuantities
    perfect: ClassVar[float] = 0.0

    owned: Owned = "main"

    def measure(self, guess: ClassQuantities, truth: Truth) -> Measured:
        real = true_owners(guess.of, truth, guess.me, self.owned, guess.clients.shape[1]).double()
        chance = [(one - real).abs().mean(1) for one in constants(real)]
        best = min(chance, key=lambda errors: float(errors.mean()))
        return Measured((guess.clients.nan_to_num(0.0) - real).abs().mean(1), best)


def constants(real: Tensor) -> list[Tensor]:
    """The mean over everything, rounded and not, and the mean of each label, for real (origins, classes)."""
    everything = real.mean().expand_as(real)
    return [everything, everything.round(), real.mean(0).expand_as(real)]


def _within(found: Tensor, real: Tensor, bound: Tensor) -> Measured:
    hits = ((found - real).abs() <= bound + 1e-9).double().mean(1)  # NaN, an abort, is no hit
    chance = [((one - real).abs() <= bound + 1e-9).double().mean(1) for one in constants(real)]
    best = max(chance, key=lambda shares: float(shares.mean()))
    return Measured(hits, best, torch.full((len(real),), real.shape[1]))
