"""Thresholds from a client's own benign history: the bound that the next benign value passes with a stated chance.

A normal model with a conjugate prior: with little history the prior decides and the bound is wide, with much of it the
client's own rounds do. That is the schedule for early rounds. No attack enters anywhere. A quiet history does not make
the guard nervous: the bound stays above what training does elsewhere. And what a server could make grow round by round,
steps and weights, has a ceiling that no history lifts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import gt
from typing import NamedTuple, final

from scipy import special

# Where benign federations lie before anything is known of this one: middle and spread of the five statistics, from
# development runs on other seeds (docs/design/active.md), worth this many rounds.
PRIOR_MIDDLE = (1.4, 1.4, 0.0, 0.1, -0.5)
PRIOR_SPREAD = (0.7, 0.6, 0.25, 0.1, 0.25)
FLOOR = (3.5, 3.5, 3.2, 0.4, 1.1)  # above what any of those federations did, whoever took part in a round
CEILING = (math.inf, math.inf, 3.2, 0.8, 1.1)
PRIOR_ROUNDS = 2.0
PRIOR_FREEDOM = 10.0
KEPT = 64.0  # rounds that count; older ones fade


@final
class History(NamedTuple):
    """What is kept of accepted rounds: for each statistic their number, mean, and sum of squares about the mean."""

    rounds: Sequence[float]
    mean: Sequence[float]
    squares: Sequence[float]

    @classmethod
    def empty(cls) -> History:
        nothing = (0.0,) * len(PRIOR_MIDDLE)
        return cls(nothing, nothing, nothing)

    def after(self, values: Sequence[float]) -> History:
        """With one more round; NaN says nothing."""
        rounds, mean, squares = zip(*map(_added, *self, values), strict=True)
        return History(rounds, mean, squares)


def _added(n: float, mean: float, squares: float, value: float) -> tuple[float, float, float]:
    if math.isnan(value):
        return n, mean, squares
    if n >= KEPT:
        n, squares = KEPT - 1, squares * (KEPT - 1) / KEPT
    shift = value - mean
    mean += shift / (n + 1)
    return n + 1, mean, squares + shift * (value - mean)


def ordinary(values: Sequence[float]) -> bool:
    """Whether no bound, whatever the history, lies below any of the values: most rounds, and no bound is needed."""
    return not any(map(gt, values, FLOOR))


def bounds(history: History, false_alarms: float) -> list[float]:
    """(statistics,) what benign values exceed with at most the chance `false_alarms` in all."""
    each = 1 - false_alarms / len(PRIOR_MIDDLE)
    found: list[float] = []
    quantiles: dict[float, float] = {}  # most statistics have seen as many rounds as the others
    for place, (prior, width) in enumerate(zip(PRIOR_MIDDLE, PRIOR_SPREAD, strict=True)):
        n, mean = history.rounds[place], history.mean[place]
        weight, freedom = PRIOR_ROUNDS + n, PRIOR_FREEDOM + n
        middle = (PRIOR_ROUNDS * prior + n * mean) / weight
        shift = PRIOR_ROUNDS * n / weight * (mean - prior) ** 2
        spread = math.sqrt((PRIOR_FREEDOM * width**2 + history.squares[place] + shift) / freedom * (1 + 1 / weight))
        if freedom not in quantiles:
            quantiles[freedom] = float(special.stdtrit(freedom, each))
        bound = middle + quantiles[freedom] * spread
        found.append(min(max(bound, FLOOR[place]), CEILING[place]))
    return found
