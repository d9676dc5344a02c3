"""Intervals: between which bounds a mean or a share lies, given what was measured."""

from __future__ import annotations

import math

from scipy import stats
from torch import Tensor

CONFIDENCE = 0.95


def binomial_interval(hits: float, trials: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval for a share of `hits` among `trials`; neither need be whole (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, trials - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


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
    that were seen do not show it, and it covers less than it says (tests/test_intervals.py).
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
    return binomial_interval(share * effective, effective, confidence)
