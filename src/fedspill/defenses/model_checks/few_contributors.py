"""Which units' sums of a round rest on few samples, alone or beside another unit's: what the gate keeps back.

What is left of a unit beside another, r, has (sum r^2)^2 / sum r^4 samples. That count takes three products of
(samples, units) with itself for all pairs of units. One of them gives sum r^2, and with the units' largest parts a
bound, by which hardly any pair can have few: only these are counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.defenses.model_checks.isolating_units import FEW, fewest_in_pairs

_SAME = 1e-5  # of a unit's sum: less than that is rounding, and two units get the same
_SOME = 256  # samples, by which most pairs of units are already seen to fire for unlike ones
_MANY = 16  # pairs for each unit, from which on it is faster to count all


def rest_on_few(signals: Tensor, fewest: float, *, pairs: bool = False, firing: bool = False) -> Tensor:
    """(units,) whether fewer than `fewest` samples effectively make up a unit's sum; signals (samples, units).

    With `pairs` also units that get the same as another one but for fewer samples, however wrong the model is about
    them; with `firing` units that fire for the same samples as another, but for fewer. Of fewer than 4 times `fewest`
    samples a quarter is asked for; pairs of fewer than 8 samples say nothing.
    """
    needed = min(fewest, len(signals) / 4)
    few = signals.abs().sum(0).square_() < needed * signals.square().sum(0).clamp_min_(1e-30)
    if pairs and len(signals) >= 8:
        few = _few_in_pairs(signals / signals.norm(dim=1, keepdim=True).clamp_min(1e-30), needed, few)
        if firing:
            few |= _few_between(signals.sign().abs_(), needed)
    return few


def _few_in_pairs(signals: Tensor, needed: float, known: Tensor) -> Tensor:
    """(units,) whether `fewest_in_pairs` is below `needed`, or that was known of a unit before."""
    squares = signals.square().sum(0)
    s = signals / squares.sqrt_().clamp_min_(1e-30)
    fit = s.T @ s
    left = fit.square().neg_().add_(1)  # sum r^2
    # Sum r^4 is at most max r^2 sum r^2, and at most the fourth power of both units' norms of that kind together.
    suspect = left < needed * _both(s.abs().amax(0), fit)
    suspect &= left < needed**0.5 * _both(s.square().square_().sum(0) ** 0.25, fit)
    silent = squares == 0
    suspect &= ~(silent | (known | silent)[:, None])
    suspect.fill_diagonal_(False)
    few = known.clone()
    units = suspect.any(1).nonzero().flatten()
    if not len(units):
        return few
    nearest = left[units].masked_fill_(~suspect[units], 2).argmin(1)
    few[units] = _counts(s, units, nearest) < needed  # most units that have few have them beside the nearest
    suspect &= ~few[:, None]
    units, others = suspect.nonzero(as_tuple=True)
    if len(units) > _MANY * len(few):
        return few | (fewest_in_pairs(signals) < needed)
    few[units[_counts(s, units, others) < needed]] = True
    return few


def _both(norms: Tensor, fit: Tensor) -> Tensor:
    """(units, units) the square of the largest norm that what is left of a unit can have, by norms of both (units,)."""
    return (fit.abs() * norms).add_(norms[:, None]).square_()


def _counts(s: Tensor, units: Tensor, others: Tensor) -> Tensor:
    """(pairs,) effective samples in what is left of a unit beside another; s (samples, units) of norm 1."""
    first, second = s.T[units], s.T[others]
    squares = (first - (first * second).sum(1, keepdim=True) * second).square_()
    left = squares.sum(1)
    return torch.where(left > _SAME, left.square() / squares.square_().sum(1).clamp_min(1e-30), 0)


def _few_between(fires: Tensor, needed: float) -> Tensor:
    """(units,) whether fewer than `needed` samples reach a unit and not another, or that one and not it.

    fires (samples, units) are zeros and ones. A server that gives each unit weights of its own in the next layer makes
    all samples tell every pair of units apart, and takes three or more units together to cancel them. To single a
    sample out these still have to differ by few in whom they fire for. Units that all samples reach, or none, are not
    compared: smooth activations have no others.
    """
    reached = fires.sum(0)
    some = (reached >= FEW) & (reached <= len(fires) - FEW)
    rows = some.nonzero().flatten()
    if len(fires) >= 2 * _SOME:
        rows = rows[_nearest(fires[:: len(fires) // _SOME], rows, some) < needed]
    few = torch.zeros_like(some)
    few[rows] = _nearest(fires, rows, some) < needed
    return few


def _nearest(fires: Tensor, rows: Tensor, some: Tensor) -> Tensor:
    """(rows,) the fewest samples that only one of a unit of `rows` and another one of `some` (units,) fires for."""
    reached = fires.sum(0)
    apart = (fires[:, rows].T @ fires).mul_(-2).add_(reached).add_(reached[rows, None])
    apart[:, ~some] = torch.inf
    apart[torch.arange(len(rows)), rows] = torch.inf
    return apart.amin(1)
