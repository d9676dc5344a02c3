"""Metrics for features of another party: single values, whole rows with their certificates, and variance explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.intervals import SAMPLES, Proof
from fedspill.leaks.features.guess import FeatureRows
from fedspill.metric import Measured, Metric
from fedspill.trace import Truth

NEAR = 0.05  # of a column's range: what is nearer than that is read right, by convention
ROUNDING = 1e-3  # of a value: nearer is the same one, read through a layer in float32


@dataclass(frozen=True, eq=False)
class _Held:
    """Guessed and true rows (samples, features), which of them are certified, and how near is near in each column."""

    guessed: Tensor
    real: Tensor
    certified: Tensor  # (samples,) bool
    near: Tensor  # (features,)

    @property
    def right(self) -> Tensor:
        """(samples, features) bool."""
        return (self.guessed - self.real).abs() <= self.near

    @property
    def proof(self) -> Proof:
        """Certified rows that are whole and right, and those that are not."""
        whole = self.right.all(1)
        return Proof(int((self.certified & whole).sum()), len(whole), int((self.certified & ~whole).sum()))


@final
@dataclass(frozen=True)
class FeatureCells(Metric[FeatureRows]):
    """Share of single values read within a twentieth of their column's range; of yes and no, the nearer one is said.

    Guessing says the same value for everybody: for each column the one that is near to the most, which it is told.
    """

    name: ClassVar[str] = "feature-cells"
    title: ClassVar[str] = "Single values of another party read right"
    paper: ClassVar[str] = "fedspill"
    guesses = FeatureRows
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: FeatureRows, truth: Truth) -> Measured:
        held = _held(guess, truth)
        values = held.right.double().mean(1)
        chance = torch.full_like(values, _best_constant(held.real, held.near))
        trials = torch.full((len(values),), held.right.shape[1])
        return Measured(values, chance, trials, None, SAMPLES, proof=held.proof)


@final
@dataclass(frozen=True)
class FeatureRowsExact(Metric[FeatureRows]):
    """Share of rows of which every value is read right; guessing says the commonest row. Certificates are counted."""

    name: ClassVar[str] = "feature-rows"
    title: ClassVar[str] = "Whole rows of another party read right"
    paper: ClassVar[str] = "fedspill"
    guesses = FeatureRows
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: FeatureRows, truth: Truth) -> Measured:
        held = _held(guess, truth)
        values = held.right.all(1).double()
        commonest = float(torch.unique(held.real, dim=0, return_counts=True)[1].max()) / len(values)
        chance, trials = torch.full_like(values, commonest), torch.ones(len(values), dtype=torch.int64)
        return Measured(values, chance, trials, None, SAMPLES, proof=held.proof)


@final
@dataclass(frozen=True)
class FeatureVariance(Metric[FeatureRows]):
    """Share of the features' variance that the guess explains (R2); the means of all columns explain nothing of it."""

    name: ClassVar[str] = "feature-r2"
    title: ClassVar[str] = "Variance of another party's features explained"
    paper: ClassVar[str] = "Luo et al. 2021"
    guesses = FeatureRows
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: FeatureRows, truth: Truth) -> Measured:
        held = _held(guess, truth)
        whole = (held.real - held.real.mean(0)).square().sum(1).mean()
        if not float(whole) > 0:
            raise NotScored("all rows are alike: there is no variance to explain")
        values = 1 - (held.guessed - held.real).square().sum(1) / whole
        return Measured(values, torch.zeros_like(values), None, None, SAMPLES)


def _held(guess: FeatureRows, truth: Truth) -> _Held:
    columns = torch.tensor(guess.columns)
    real = []
    for origin, places in zip(guess.of, guess.places, strict=True):
        if not truth.has(origin, "inputs"):
            raise NotScored("the samples' features are not at hand")
        whole = truth.get(origin, "inputs").flatten(1).double()
        if len(places) == 0 or int(places.max()) >= len(whole) or int(columns.max()) >= whole.shape[1]:
            raise NotScored(f"round {origin.round} has {len(whole)} samples, the guess speaks of others")
        real.append(whole[places][:, columns])
    every = torch.cat(real)
    guessed, certified = torch.cat([rows.double() for rows in guess.rows]), torch.cat(list(guess.certified))
    spread = every.max(0).values - every.min(0).values
    # Of a column with two values only the nearer one counts, whatever the distance.
    two = torch.tensor([len(torch.unique(column)) == 2 for column in every.T])
    near = torch.where(two, 0.499 * spread, NEAR * spread)
    # A column that does not vary among these samples does not show its range; what float32 leaves of it is no error.
    rounding = ROUNDING * every.abs().max(0).values.clamp_min(1)
    return _Held(guessed, every, certified, near.maximum(rounding))


def _best_constant(real: Tensor, near: Tensor) -> float:
    """The mean over columns of the largest share of values (n, features) that one value is near to."""
    shares = []
    for column, room in zip(real.T, near, strict=True):
        ordered = column.sort().values
        ends = torch.searchsorted(ordered, ordered + 2 * room, right=True)
        shares.append(float((ends - torch.arange(len(ordered))).max()) / len(ordered))
    return sum(shares) / len(shares)
