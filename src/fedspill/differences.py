"""Two audits: whether the mean over federations changed, or only the draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import special

from fedspill.intervals import (
    CONFIDENCE,
    FEDERATIONS,
    RESOLUTION,
    Interval,
    OverFederations,
    combined,
    normal_factor,
    student_factor,
)


@dataclass(frozen=True, slots=True)
class TestedDifference:
    """After minus before, its interval, and how surprising it would be (`p`) if nothing had changed."""

    value: float
    interval: Interval
    p: float


def difference(before: OverFederations, after: OverFederations) -> TestedDifference:
    """Tests whether the mean over federations changed.

    Welch's test over federations where both audits have three or more. A failure that is rare shows as spread in the
    audit that has it, so that nothing need be added for it here. Where neither has any spread, or where an audit has
    fewer federations, the clients' spread decides (MOVER over the two intervals), and the population says so. Audits of
    the same seeds are not paired: a plan that differs draws other clients, and pairing then gains nothing.
    """
    value = after.mean - before.mean
    error, freedom = _welch(before.federations, after.federations) if before.enough and after.enough else (0.0, 1.0)
    if error <= RESOLUTION:
        interval = combined(value, [one.off_by_clients() for one in (after, before)], (1.0, -1.0))
        return TestedDifference(value, interval, _p_of(value, interval, before.confidence))
    half = student_factor(freedom, before.confidence) * error
    interval = Interval(value - half, value + half, FEDERATIONS, min(len(before.federations), len(after.federations)))
    return TestedDifference(value, interval, 2 * float(special.stdtr(freedom, -abs(value) / error)))


def _p_of(value: float, interval: Interval, confidence: float) -> float:
    """The p-value of no difference, by the interval's half on the side of 0, as if normal."""
    if abs(value) <= RESOLUTION:
        return 1.0
    half = value - interval.low if value > 0 else interval.high - value
    if half <= 0:
        return 0.0
    return 2 * float(special.ndtr(-normal_factor(confidence) * abs(value) / half))


def _welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Standard error of the difference of means, and its degrees of freedom."""
    parts = [(float(torch.tensor(v, dtype=torch.float64).var()) / len(v), len(v) - 1) for v in (before, after)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0, float(min(freedom for _, freedom in parts))
    return math.sqrt(total), total**2 / sum(part**2 / freedom for part, freedom in parts)


def beyond_noise(p_values: Sequence[float], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Which of several differences are real, with at most `level` chance that any call is false (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    real = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        real[index] = True
    return real
