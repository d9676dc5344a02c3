"""Privacy loss distributions: the exact epsilon of repeated Gaussian noise, and Opacus' PRV accountant for samples.

Renyi divergences bound every mechanism by its moments and lose a little each time. The distribution of the privacy loss
itself loses nothing. Of Gaussian noise on everything it is known in closed form (Balle and Wang 2018, Theorem 8); on
Poisson samples it is composed numerically (Gopi, Lee, Wutschitz 2021) by Opacus, if that is installed (`fedspill[dp]`).
Both are upper bounds, so that the smaller of theirs and Renyi's holds.
"""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any

from scipy import optimize, special

from fedspill.defenses.accountant import gaussian_epsilon

MOST_EPSILON = 100.0  # above it nothing is promised that anyone would read, and the grid would be huge
EPSILON_ERROR = 0.01  # what the numerical composition may add: it returns its upper end


def tighter_epsilon(multiplier: float, sampling: float, steps: int, delta: float) -> tuple[float, str]:
    """The smaller of two upper bounds on epsilon, and the accountant that gave it; arguments as `gaussian_epsilon`."""
    renyi = gaussian_epsilon(multiplier, sampling, steps, delta)
    if steps == 0 or not math.isfinite(renyi) or renyi > MOST_EPSILON:
        return renyi, "Renyi"
    exact = exact_gaussian(multiplier, steps, delta) if sampling == 1 else _composed(multiplier, sampling, steps, delta)
    return (exact, "privacy loss distribution") if exact is not None and exact < renyi else (renyi, "Renyi")


def exact_gaussian(multiplier: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` releases of everything: they are one release with the noise divided by the root of steps."""
    sigma = multiplier / math.sqrt(steps)

    def excess(epsilon: float) -> float:
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return float(special.ndtr(near) - math.exp(epsilon + special.log_ndtr(far))) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-10)) + 1e-9  # rounded up


def _composed(multiplier: float, sampling: float, steps: int, delta: float) -> float | None:
    """Opacus' upper bound; None where it is not installed or gives up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            accountants: Any = importlib.import_module("opacus.accountants")
            accountant = accountants.PRVAccountant()
            accountant.history = [(multiplier, sampling, steps)]
            found = float(accountant.get_epsilon(delta, eps_error=EPSILON_ERROR))
        except (ImportError, ValueError, RuntimeError, ArithmeticError, MemoryError):
            return None
    return found if math.isfinite(found) and found >= 0 else None
