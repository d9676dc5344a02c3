"""Metrics for how many clients own a label (paper 002): within one client, within 5 % of the round, mean error.

An abort counts as a miss. The no-access guesses are the mean over other rounds of all labels, rounded or not, and of
each label; a round is a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.chance import error_chance, quantity_chance
from fedspill.intervals import ROUNDS, Scale
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.round_truth import Owned, true_owners
from fedspill.metric import Measured, Metric, numbered
from fedspill.trace import Origin, Truth


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
        return _within(found, real, torch.full((len(real), 1), self.bound), guess.of)


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
        return _within(guess.clients, real, 0.05 * size, guess.of)


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
        found = (guess.clients.nan_to_num(0.0) - real).abs().mean(1)
        rounds = numbered([origin.round for origin in guess.of])
        chance = error_chance(real, rounds)
        most = max(len(truth.get(origin, "clients")) for origin in guess.of)
        # A guess may name more clients than there are.
        worst = max(float(most), float(found.max()), float(chance.max()), 1.0)
        scale = Scale(worst, 0.0, failed=float(chance.mean()))
        return Measured(found, chance, None, rounds, ROUNDS, scale)


def constants(real: Tensor) -> list[Tensor]:
    """With hindsight, as the paper's tables have it: the mean over everything, rounded and not, and of each label."""
    everything = real.mean().expand_as(real)
    return [everything, everything.round(), real.mean(0).expand_as(real)]


def _within(found: Tensor, real: Tensor, bound: Tensor, of: Sequence[Origin]) -> Measured:
    rounds = numbered([origin.round for origin in of])
    hits = ((found - real).abs() <= bound + 1e-9).double().mean(1)  # NaN, an abort, is no hit
    chance = quantity_chance(real, rounds, bound)
    return Measured(hits, chance, torch.full((len(real),), real.shape[1]), rounds, ROUNDS)
