"""Privacy accountant: epsilon of repeated noise, by Renyi divergences (Mironov, Talwar, Zhang 2019).

The Renyi divergence of a sampled Gaussian mechanism is an integral over one variable. Where others expand it in a
series, it is integrated here on a grid: the integrand is analytic, so the trapezoid rule is exact to rounding, and the
two ways check each other (tests/defenses/test_accountant.py holds it against Opacus).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedspill.errors import UsageError

ORDERS: NDArray[np.float64] = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)
_TAIL = 12.0  # standard deviations beyond the last peak; what lies outside is below rounding
_PER_SIGMA = 40  # points of the grid


def gaussian_epsilon(multiplier: float, sampling: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` releases, each with noise `multiplier` times the sensitivity, on Poisson samples.

    sampling is the chance of a record to be in a step; 1 is all of them. Adding or removing one record.
    """
    if not 0 < delta < 1 or not 0 < sampling <= 1 or multiplier < 0 or steps < 0:
        raise UsageError(
            f"Expected 0 < delta < 1, 0 < sampling <= 1, noise >= 0 and steps >= 0, "
            f"got {delta}, {sampling}, {multiplier} and {steps}."
        )
    if steps == 0:
        return 0.0
    if multiplier == 0:
        return math.inf
    return _to_epsilon(steps * renyi_divergence(multiplier, sampling), delta)


def renyi_divergence(multiplier: float, sampling: float) -> NDArray[np.float64]:
    """(orders,) of one release: the sampled Gaussian mechanism of sensitivity 1."""
    if sampling == 1:
        return ORDERS / (2 * multiplier**2)
    z = np.arange(-_TAIL * multiplier, ORDERS[-1] + _TAIL * multiplier, multiplier / _PER_SIGMA)
    density = -0.5 * (z / multiplier) ** 2 - math.log(multiplier * math.sqrt(2 * math.pi))
    ratio = np.logaddexp(math.log1p(-sampling), math.log(sampling) + (2 * z - 1) / (2 * multiplier**2))
    terms = density + ORDERS[:, None] * ratio
    highest = terms.max(1, keepdims=True)
    log_moment = highest[:, 0] + np.log(np.exp(terms - highest).sum(1) * (multiplier / _PER_SIGMA))
    divergence: NDArray[np.float64] = log_moment / (ORDERS - 1)
    return divergence


def _to_epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """The best order's bound (Balle et al. 2020, Theorem 21)."""
    bounds = divergence - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1) + np.log((ORDERS - 1) / ORDERS)
    return float(max(bounds.min(), 0.0))


def laplace_epsilon(scale: float, sensitivity: float, steps: int) -> float:
    """Pure epsilon of `steps` releases with Laplace noise of that scale; sensitivity in the sum of absolute values."""
    return math.inf if scale == 0 else steps * sensitivity / scale
