"""Whether twins are like the recording: the same quantities of both, and a test that a twin of wrong facts fails.

Each quantity of the recording must lie where one more twin would: between Student's limits of the twins' own values,
all quantities together at LEVEL. A difference that no reading depends on (TOLERANCE) is not held against a twin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from scipy import stats
from torch import Tensor

from fedspill.audit.result import LikenessCheck
from fedspill.deployment.quantities import Quantities

LEVEL = 0.05  # how often twins of the very same facts are called unlike
MOST = 1 - 1e-6  # of a cosine, so that its z is finite
TOLERANCE = 0.1  # of logs: a tenth more or less

TITLES = {
    "update size": "length of an update, log",
    "agreement": "length of the mean update beside its updates, log",
    "trend": "length of the last round's mean update beside the first's, log",
    "steadiness": "angle between one round's mean update and the next, cosine",
    "head": "share of the last layer in the mean update, log",
    "inputs": "which inputs the first layer learns from, likeness (Fisher's z of a cosine)",
    "direction": "where the first mean update goes, likeness (Fisher's z of a cosine)",
    "confidence": "what the attacks expect to have right, mean",
}
ONE_SIDED = frozenset({"inputs", "direction"})  # more alike than twins among themselves is no fault


def compared(recorded: Quantities, twins: Sequence[Quantities]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The numbers of the recording and of each twin, with how alike each is to the (other) twins."""
    mine = recorded.numbers | _likeness(recorded, twins)
    others = [twin.numbers | _likeness(twin, [other for other in twins if other is not twin]) for twin in twins]
    return mine, others


def likeness_checks(recorded: Mapping[str, float], twins: Sequence[Mapping[str, float]]) -> list[LikenessCheck]:
    """Each quantity beside the limits for one more twin."""
    names = [name for name in TITLES if name in recorded and all(name in twin for twin in twins)]
    if len(twins) < 2 or not names:
        return []
    limit = float(stats.t.ppf(1 - LEVEL / (2 * len(names)), len(twins) - 1))
    checks = []
    for name in names:
        values: list[float] = [twin[name] for twin in twins]
        spread = math.sqrt(stdev(values) ** 2 * (1 + 1 / len(values)) + (TOLERANCE / limit) ** 2)
        low, high = fmean(values) - limit * spread, fmean(values) + limit * spread
        alike = low <= recorded[name] and (name in ONE_SIDED or recorded[name] <= high)
        checks.append(
            LikenessCheck(
                name=name,
                title=TITLES[name],
                recorded=recorded[name],
                low=low,
                high=high,
                twins=list(values),
                alike=alike,
            )
        )
    return checks


def _likeness(one: Quantities, others: Sequence[Quantities]) -> dict[str, float]:
    """Fisher's z of the mean cosine with each of the others."""
    return {
        "inputs": _fisher([_cosine(one.inputs, other.inputs) for other in others]),
        "direction": _fisher([_cosine(one.direction, other.direction) for other in others]),
    }


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()).clamp_min(1e-30))


def _fisher(cosines: Sequence[float]) -> float:
    return math.atanh(min(max(fmean(cosines), -MOST), MOST))
