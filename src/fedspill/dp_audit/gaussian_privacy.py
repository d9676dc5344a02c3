"""Gaussian differential privacy: one number mu instead of epsilon and delta (Dong, Roth, Su 2022)."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.stats import norm

MOST_MU = 60.0  # two normals so far apart are told apart surely; further out the tails are beyond float64


def epsilon_of(mu: float, delta: float) -> float:
    """The epsilon at `delta` of telling apart two unit normals at distance mu (their Corollary 1)."""
    mu = min(mu, MOST_MU)
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        first, second = norm.logcdf(-epsilon / mu + mu / 2), epsilon + norm.logcdf(-epsilon / mu - mu / 2)
        return float(first + math.log1p(-math.exp(min(second - first, -1e-300))) - math.log(delta))

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, mu * mu / 2 + 8 * mu + 10))


def mu_of(epsilon: float, delta: float) -> float:
    """The mu that gives this epsilon at `delta`."""
    return float(brentq(lambda mu: epsilon_of(mu, delta) - epsilon, 1e-4, MOST_MU))
