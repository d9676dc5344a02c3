"""Lower bounds on epsilon from the scores of canaries that were in and of canaries that were not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom, chi2, t

from fedspill.dp_audit.gaussian_privacy import MOST_MU, epsilon_of

Scores: TypeAlias = NDArray[np.float64]
_SHARES = (0.02, 0.05, 0.125, 0.25, 0.5)  # of all canaries, guessed at either end; each share pays for itself


@dataclass(frozen=True)
class Separation:
    """How far the scores of canaries in and out lie apart, in standard deviations, and surely at least."""

    mu: float
    low: float


def separation(inside: Scores, outside: Scores, confidence: float) -> Separation:
    """For normal scores with one spread (Andrew et al. 2024).

    Half of the allowed error goes to the distance (Student), half to the spread (chi-square), so that the bound holds
    for few canaries too.
    """
    n, m = len(inside), len(outside)
    if min(n, m) < 2:
        return Separation(0.0, 0.0)
    free = n + m - 2
    spread = math.sqrt((inside.var(ddof=1) * (n - 1) + outside.var(ddof=1) * (m - 1)) / free)
    return separation_of(float(inside.mean() - outside.mean()), spread, math.sqrt(1 / n + 1 / m), free, confidence)


def separation_of(distance: float, spread: float, scale: float, free: int, confidence: float) -> Separation:
    """From an estimated distance whose standard error is `scale` times the spread, with `free` degrees of freedom."""
    if spread <= 1e-9 * abs(distance):
        mu = MOST_MU if distance > 0 else 0.0
        return Separation(mu, mu)
    error = (1 - confidence) / 2
    nearest = distance - float(t.ppf(1 - error, free)) * spread * scale
    widest = spread * math.sqrt(free / float(chi2.ppf(error, free)))
    return Separation(min(distance / spread, MOST_MU), min(max(nearest / widest, 0.0), MOST_MU))


def steinke(inside: Scores, outside: Scores, delta: float, confidence: float) -> float:
    """One run, many canaries, guesses at both ends (Steinke, Nasr, Jagielski 2023, Theorem 5.2)."""
    m = len(inside) + len(outside)

    def too_many(epsilon: float, guesses: int, right: int, error: float) -> bool:
        chance = float(expit(epsilon))
        beyond = float(binom.sf(right - 1, guesses, chance))
        steps = np.arange(1, right + 1)
        slack = float(np.max((binom.sf(right - steps - 1, guesses, chance) - beyond) / steps, initial=0.0))
        return beyond + slack * delta * 2 * m <= error

    return _best_share(
        inside,
        outside,
        confidence,
        lambda guesses, right, error: _largest(lambda e: too_many(e, guesses, right, error), 40),
    )


def one_run_f_dp(inside: Scores, outside: Scores, delta: float, confidence: float) -> float:
    """One run against a Gaussian trade-off curve (Mahloujifar, Melis, Chaudhuri 2024), guesses at both ends."""
    m = len(inside) + len(outside)

    def too_many(mu: float, guesses: int, right: int, error: float) -> bool:
        rest, wrong = error * right / m, error * (guesses - right) / m
        for k in range(right - 1, -1, -1):
            most = max(wrong, float(ndtr(ndtri(rest) - mu))) if rest < 1 else 1.0
            if most == wrong:
                break
            rest = min(1.0, rest + k / (guesses - k) * (most - wrong))
            wrong = most
        return rest + wrong > guesses / m

    return _best_share(
        inside,
        outside,
        confidence,
        lambda guesses, right, error: epsilon_of(_largest(lambda mu: too_many(mu, guesses, right, error), 12), delta),
    )


def _best_share(inside: Scores, outside: Scores, confidence: float, bound: Callable[[int, int, float], float]) -> float:
    scores = np.concatenate([inside, outside])
    truth = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    order, best, error = np.argsort(scores, kind="stable"), 0.0, (1 - confidence) / len(_SHARES)
    for share in _SHARES:
        many = max(1, int(share * len(scores)))
        right = int(truth[order[-many:]].sum() + (1 - truth[order[:many]]).sum())
        best = max(best, bound(2 * many, right, error))
    return best


def _largest(refuted: Callable[[float], bool], most: float) -> float:
    """The largest value that is refuted; 0 where none is. What is refuted is refuted below too."""
    if not refuted(1e-3):
        return 0.0
    if refuted(most):
        return most
    return float(brentq(lambda value: 0.5 if refuted(value) else -0.5, 1e-3, most, xtol=1e-3))
