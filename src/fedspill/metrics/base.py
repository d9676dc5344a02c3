"""Score: a number with its interval, its n and its chance level. Metric: how a guess is held against the truth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from scipy import stats
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.guesses import Guess
from fedspill.trace import Truth

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Score:
    """A measured value; `chance` is the best that no access at all would get. Unscored is never zero."""

    value: float
    low: float
    high: float
    n: int
    chance: float
    status: Literal["ok", "unscored"] = "ok"
    why: str = ""  # of an unscored one

    @staticmethod
    def unscored(why: str, n: int = 0) -> Score:
        return Score(math.nan, math.nan, math.nan, n, math.nan, "unscored", why)


@dataclass(frozen=True, eq=False)
class Measured:
    """Per origin: the value, and what the best no-access guess would have got; `trials` for shares of a count."""

    values: Tensor  # (origins,)
    chance: Tensor  # (origins,)
    trials: Tensor | None = None  # (origins,)

    @staticmethod
    def join(parts: Sequence[Measured]) -> Measured:
        """The origins of several federations as one sample."""
        trials = [part.trials for part in parts if part.trials is not None]
        return Measured(
            torch.cat([part.values for part in parts]),
            torch.cat([part.chance for part in parts]),
            torch.cat(trials) if len(trials) == len(parts) else None,
        )


class Metric(ABC):
    """One way to score a guess. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    guesses: ClassVar[type[Guess]]
    perfect: ClassVar[float]  # the value of a perfect guess

    @abstractmethod
    def measure(self, guess: Guess, truth: Truth) -> Measured:
        """What the author writes."""

    def evidence(self, guess: Guess, truth: Truth, *, private: bool) -> list[Evidence]:
        """What a report may draw beside the score; with `private`, also what single records show."""
        return []

    @final
    def score(self, guess: Guess, truth: Truth) -> Score:
        """Guess against truth; what cannot be held against it is unscored, never zero."""
        try:
            measured = self.measure(guess, truth)
        except NotScored as error:
            return Score.unscored(error.problem, len(guess.of))
        return self.summarise(measured)

    def summarise(self, measured: Measured) -> Score:
        """The mean over origins with its interval; origins that cannot be measured make the score unscored.

        A metric that is not a mean over origins, such as an area under a curve, writes its own.
        """
        n = len(measured.values)
        if n == 0:
            return Score.unscored("nothing to score")
        if not bool(torch.isfinite(measured.values).all()) or not bool(torch.isfinite(measured.chance).all()):
            return Score.unscored("a value is not finite", n)
        value = float(measured.values.double().mean())
        if measured.trials is None:
            low, high = mean_interval(measured.values)
        else:
            low, high = clustered_share_interval(measured.values, measured.trials)
        return Score(value, min(low, value), max(high, value), n, float(measured.chance.double().mean()))


def mean_interval(values: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval for the mean; unbounded for a single value."""
    n = len(values)
    mean = float(values.double().mean())
    if n < 2:
        return -math.inf, math.inf
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * float(values.double().std()) / math.sqrt(n)
    return mean - half, mean + half


def clustered_share_interval(shares: Tensor, trials: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval for a share of trials that come in clusters (labels in batches), after Korn and Graubard (1998).

    The exact binomial interval at the effective number of trials: the variance between clusters says how many
    independent trials the data are worth, and few clusters make that estimate itself uncertain. Unlike Student's
    interval it is no point when every cluster scores 100 %. Its limit: where clusters fail as wholes and rarely, those
    that were seen do not show it, and it covers less than it says (tests/metrics/test_metrics_intervals.py).
    """
    clusters = len(shares)
    share = float(shares.double().mean())
    total = float(trials.sum())
    if clusters < 2:
        effective = 1.0  # one batch says nothing about how batches differ
    else:
        between = float(shares.double().var()) / clusters
        independent = share * (1 - share) / between if between > 0 else total
        certainty = (stats.norm.ppf((1 + confidence) / 2) / stats.t.ppf((1 + confidence) / 2, clusters - 1)) ** 2
        effective = max(1.0, min(independent, total) * float(certainty))
    hits = share * effective
    tail = (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, effective - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, effective - hits)) if hits < effective else 1.0
    return low, high
