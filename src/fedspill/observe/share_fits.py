"""Class shares fitted to what make-believe clients sent, each judged on clients that it was not fitted to.

A reading is a number for each class, such as the change of its bias. Three fits turn readings into shares: one slope
for all classes, a slope for each class, and a ridge regression on all classes' readings. Which is best depends on how
many classes and clients there are. So the clients come in folds, each fit is judged on the folds
that it has not seen, and all readings and fits are mixed by the non-negative weights under which the errors there are
smallest (stacking, Breiman 1996): the mixture is about as good as the best of them, whichever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from fedspill.observe.simplex import simplex_fit

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # over the mean variance of a reading: decades, by convention
FARTHEST = 4.0  # deviations from the mean of what was rehearsed: beyond them nothing is extrapolated (convention)
ROUNDING = 1e-9  # of the largest reading: float32 sums leave far more where anything was read (derived)
_TINY = 1e-30

# Readings and shares (clients, classes) of those who are known and readings (n, classes) of others to their shares.
Fitter: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ShareFit:
    """What one fit, or a mixture of them, says of some updates, and what it said of make-believe clients unseen."""

    shares: Tensor  # (updates, classes), not yet made positive
    unseen: Tensor  # (clients, classes) each make-believe client by a fit without its fold


def common_slope(readings: Tensor, shares: Tensor, asked: Tensor) -> Tensor:
    """Each class has its own level, and all have one slope."""
    x, y, off = _centred(readings, shares, asked)
    return shares.mean(0) + off * ((x * y).sum() / (x * x).sum().clamp_min(_TINY))


def own_slopes(readings: Tensor, shares: Tensor, asked: Tensor) -> Tensor:
    """Each class has its own level and slope."""
    x, y, off = _centred(readings, shares, asked)
    return shares.mean(0) + off * ((x * y).sum(0) / (x * x).sum(0).clamp_min(_TINY))


def ridge(strength: float, readings: Tensor, shares: Tensor, asked: Tensor) -> Tensor:
    """Every class's share from the readings of all classes, solved among the clients."""
    x, y, off = _centred(readings, shares, asked)
    # A reading that only rounding moves, such as a bias that is frozen, says nothing: it must not be blown up.
    spread = readings.std(0).clamp_min(max(ROUNDING * float(readings.abs().max()), _TINY))
    x, off = x / spread, off / spread
    gram = x @ x.T / x.shape[1] + strength * torch.eye(len(x), dtype=x.dtype)
    weights: Tensor = torch.linalg.solve(gram, y)
    return shares.mean(0) + (off @ x.T / x.shape[1]) @ weights


def _centred(readings: Tensor, shares: Tensor, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    level, most = readings.mean(0), FARTHEST * readings.std(0)
    return readings - level, shares - shares.mean(0), torch.clamp(asked - level, -most, most)


FITTERS: tuple[tuple[Fitter, ...], ...] = (
    (common_slope,),
    (own_slopes,),
    tuple(partial(ridge, strength) for strength in RIDGES),
)


def fits_of(
    readings: Mapping[str, Tensor], shares: Tensor, folds: Tensor, asked: Mapping[str, Tensor]
) -> list[ShareFit]:
    """For each reading (clients, classes) and each kind of fit the best of its kind; folds (clients,) number them."""
    found = []
    for name, known in readings.items():
        for kind in FITTERS:
            tried = [(_unseen(fitter, known, shares, folds), fitter) for fitter in kind]
            unseen, best = min(tried, key=lambda one: float((one[0] - shares).abs().sum()))
            found.append(ShareFit(best(known, shares, asked[name]), unseen))
    return found


def _unseen(fitter: Fitter, readings: Tensor, shares: Tensor, folds: Tensor) -> Tensor:
    """(clients, classes) the shares of each client by the fit to the other folds."""
    found = torch.empty_like(shares)
    for fold in set(folds.tolist()):
        inside = folds == fold
        found[inside] = fitter(readings[~inside], shares[~inside], readings[inside])
    return found


def mixed(fits: Sequence[ShareFit], shares: Tensor) -> ShareFit:
    """The mixture whose errors on clients unseen, with shares (clients, classes), are smallest in the square."""
    columns = torch.stack([fit.unseen for fit in fits] + [shares]) - shares.mean(0)
    flat = columns.flatten(1)
    weights, _ = simplex_fit(flat @ flat.T, torch.ones(len(fits), dtype=torch.bool))
    return ShareFit(
        torch.einsum("f,fuc->uc", weights, torch.stack([fit.shares for fit in fits])),
        torch.einsum("f,fkc->kc", weights, torch.stack([fit.unseen for fit in fits])),
    )


def positive(shares: Tensor) -> Tensor:
    """(..., classes) not negative, adding up to 1; even where nothing is positive."""
    kept = shares.clamp_min(0) + _TINY
    return kept / kept.sum(-1, keepdim=True)
