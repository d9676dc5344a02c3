"""Two neighbours, sent many times each: for code of others whose clipping and noise are of any kind.

Whoever sees one message and knows both updates looks how far it lies towards the one or the other. How often that is
right bounds epsilon from below, whatever the noise is. What a normal law would say stands beside it and accuses nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of
from fedspill.dp_audit.lower_bounds import Scores, separation
from fedspill.dp_audit.result import DpResult, DpTest, shared_confidence

_DELTA = 1e-5  # for claims of delta 0, which hold at every larger one too


def audit_neighbours(
    what: str, send: Callable[[Tensor], Tensor], one: Tensor, other: Tensor, *, epsilon: float, delta: float, calls: int
) -> DpResult:
    """`send` takes an update (numbers,) and returns what leaves; it is called `calls` times with each of the two."""
    towards = one - other
    found = [np.array([float((send(update.clone()) * towards).sum()) for _ in range(calls)]) for update in (one, other)]
    confidence, reached = shared_confidence(2), max(delta, _DELTA)
    normal = separation(found[0], found[1], confidence)
    counted = counted_bound(found[0], found[1], delta, confidence)
    apart = np.arange(calls, dtype=np.float64)
    tests = (
        DpTest(
            name=f"two neighbours, {calls} messages each",
            estimate=epsilon_of(normal.mu, reached),
            lower=epsilon_of(normal.low, reached),
            confidence=confidence,
            assumption="scores of a neighbour are normal",
            largest=epsilon_of(MOST_MU, reached),
            accuses=False,  # Laplace noise, say, would be accused of tails that it does not have
        ),
        DpTest(
            name=f"two neighbours, counted over {calls - calls // 2} messages each",
            estimate=counted,
            lower=counted,
            confidence=confidence,
            assumption="none",
            largest=counted_bound(apart + 2 * calls, apart, delta, confidence),
        ),
    )
    return DpResult(what=what, claimed=epsilon, delta=delta, tests=tests)


def counted_bound(one: Scores, other: Scores, delta: float, confidence: float) -> float:
    """From right and wrong calls (Jagielski, Ullman, Oprea 2020): a threshold from the first half, counted on the rest.

    Clopper and Pearson bound both rates, from below and from above.
    """
    half = len(one) // 2
    error = (1 - confidence) / 4  # two rates, each from below and from above
    candidates = np.quantile(np.concatenate([one[:half], other[:half]]), np.linspace(0.02, 0.98, 49))
    chosen = max(candidates, key=lambda level: _bound(one[:half], other[:half], float(level), delta, error))
    return _bound(one[half:], other[half:], float(chosen), delta, error)


def _bound(one: Scores, other: Scores, level: float, delta: float, error: float) -> float:
    """Both rates are bounded once; whichever of the two is called right, they hold together."""
    above, beyond = int((one > level).sum()), int((other > level).sum())
    n, m = len(one), len(other)
    found = (_ratio(above, n, beyond, m, delta, error), _ratio(m - beyond, m, n - above, n, delta, error))
    return max(0.0, *found)


def _ratio(right: int, of: int, wrong: int, among: int, delta: float, error: float) -> float:
    least = float(beta.ppf(error, right, of - right + 1)) if right else 0.0
    most = float(beta.ppf(1 - error, wrong + 1, among - wrong)) if wrong < among else 1.0
    return math.log((least - delta) / most) if least > delta else 0.0


def opposite(numbers: int, length: float) -> tuple[Tensor, Tensor]:
    """Two updates as far apart as clipping each number to `length` allows."""
    return torch.full((numbers,), length), torch.full((numbers,), -length)
