"""One measured number with its interval: means over repetitions, shares of attacks, areas of targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from scipy import stats

from fedspill.reproduce import By
from fedspill.roc_area import MAX_FPR, area_interval, restricted_area

Line: TypeAlias = Mapping[str, Any]
CONFIDENCE = 0.9  # the paper's
PERCENT = (0.0, 100.0)
ANYTHING = (-math.inf, math.inf)


@dataclass(frozen=True)
class Figure:
    """One measured number of one cell."""

    cell: Mapping[str, Any]
    by: By
    metric: str
    value: float
    low: float
    high: float
    n: int
    chance: float


def mean_of(
    cell: Line, by: By, metric: str, values: Sequence[float], chance: float, ends: tuple[float, float] = ANYTHING
) -> Figure:
    """Over repetitions, with the interval of Student's t, there may be few; it ends where no value can lie."""
    mean, n = statistics.fmean(values), len(values)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) if n > 1 else math.nan
    half = quantile * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return Figure(cell, by, metric, mean, max(mean - half, ends[0]), min(mean + half, ends[1]), n, chance)


def share_of(cell: Line, by: By, metric: str, hits: float, n: int, chance: float = 0.0) -> Figure:
    """Percent of n, with the exact binomial interval."""
    tail = (1 - CONFIDENCE) / 2
    low = float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return Figure(cell, by, metric, 100 * hits / n, 100 * low, 100 * high, n, chance)


def area(values: Sequence[int], scores: Sequence[float]) -> float:
    return 100 * restricted_area(torch.tensor(values) > 0, torch.tensor(scores, dtype=torch.float64))


def guessed(without: int) -> float:
    """The restricted area that guessing has on average, percent, among that many targets without the attribute.

    The curve of few targets is a staircase that lies above the diagonal: 52.4 with eight of them, 50 with very many.
    """
    steps = [min(max(MAX_FPR - k / without, 0.0), 1 / without) * (k + 1) / (without + 1) for k in range(without)]
    least = MAX_FPR**2 / 2
    return 50 * (1 + (sum(steps) - least) / (MAX_FPR - least))


def together(cell: Line, metric: str, values: Sequence[int], scores: Sequence[float]) -> Figure:
    """The area over the targets of all repetitions: closer to what guessing has than the mean over repetitions."""
    true, given = torch.tensor(values) > 0, torch.tensor(scores, dtype=torch.float64)
    low, high = area_interval(true, given, MAX_FPR, CONFIDENCE)
    found, chance = restricted_area(true, given), guessed(int((~true).sum()))
    return Figure(cell, "fedspill", metric, 100 * found, 100 * low, 100 * high, len(true), chance)


def grouped(lines: Iterable[Line], *names: str) -> dict[tuple[Any, ...], list[Line]]:
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        found.setdefault(tuple(line[name] for name in names), []).append(line)
    return found
