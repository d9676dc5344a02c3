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
_PARTS = 8  # of the samples, in which units fire for too unlike numbers to fire for the same
_FEWEST = 8  # samples, by which pairs of units can be told apart
_MANY = 16  # pairs for each unit, from which on it is faster to count all


def rest_on_few(signals: Tensor, fewest: float, *, pairs: bool = False, firing: bool = False) -> Tensor:
    """(units,) whether fewer than `fewest` samples effectively make up a unit's sum; signals (samples, units).

    With `pairs` also units that get the same as another one but for fewer samples, however wrong the model is about
    them; with `firing` units that fire for the same samples as another, but for fewer. A unit that is stopped by itself
    is no other one: nothing of it is sent. Of fewer than 4 times `fewest` samples a quarter is asked for; fewer than 8
    say nothing about pairs, so that all units rest on few.
    """
    if pairs and len(signals) < _FEWEST:
        return torch.ones(signals.shape[1], dtype=torch.bool, device=signals.device)
    needed = min(fewest, len(signals) / 4)
    few = signals.abs().sum(0).square_() < needed * signals.square().sum(0).clamp_min_(1e-30)
    if pairs:
        few = _few_in_pairs(signals / signals.norm(dim=1, keepdim=True).clamp_min(1e-30), needed, few)
        if firing:
            few |= _few_between(signals.sign().abs_(), needed)
    return few


def _few_in_pairs(signals: Tensor, needed: float, known: Tensor) -> Tensor:
    """(units,) whether `fewest_in_pairs` is below `needed`, or that was known of a unit before."""
    fit = signals.T @ signals
    sizes = fit.diagonal().sqrt()
    scale = sizes.clamp_min(1e-30).reciprocal_()
    fit.mul_(scale).mul_(scale[:, None])
    left = fit.square().neg_().add_(1)  # sum r^2
    # Sum r^4 is at most max r^2 sum r^2, and at most the fourth power of both units' norms of that kind together.
    fit.abs_()
    suspect = left < _both(signals.abs().amax(0).mul_(scale), fit).mul_(needed)
    suspect &= left < _both(signals.square().square_().sum(0).pow_(0.25).mul_(scale), fit).mul_(needed**0.5)
    out = known | (sizes == 0)
    suspect &= ~(out | out[:, None])
    suspect.fill_diagonal_(False)
    units, others = suspect.nonzero(as_tuple=True)
    few = known.clone()
    if len(units) > _MANY * len(few):
        rest = (~out).nonzero().flatten()
        few[rest[fewest_in_pairs(signals[:, rest]) < needed]] = True
    elif len(units):
        few[units[_counts(signals * scale, units, others) < needed]] = True
    return few


def _both(norms: Tensor, fit: Tensor) -> Tensor:
    """(units, units) the square of the largest norm that what is left of a unit can have, by norms of both (units,)."""
    return (fit * norms).add_(norms[:, None]).square_()


def _counts(s: Tensor, units: Tensor, others: Tensor) -> Tensor:
    """(pairs,) effective samples in what is left of a unit beside another; s (samples, units) of norm 1."""
    first, second = s.T[units], s.T[others]
    squares = (first - (first * second).sum(1, keepdim=True) * second).square_()
    left = squares.sum(1)
    return torch.where(left > _SAME, left.square() / squares.square_().sum(1).clamp_min(1e-30), 0)


def _few_between(fires: Tensor, needed: float) -> Tensor:
    """(units,) whether fewer than `needed` samples keep a unit from firing for the same ones as another, as all that
    the other does not fire for, or as all.

    fires (samples, units) are zeros and ones. A server that gives each unit weights of its own in the next layer makes
    all samples tell every pair of units apart, and takes as many units together as there are classes to cancel them.
    What is left of such a sum are samples by which whom units fire for is not quite alike. Whatever the samples are,
    units that look along one direction are alike in three ways only: both fire beyond a height, they fire on both
    sides of it, or on all. What all samples reach tells nothing: smooth activations have no other units.

    Units that differ by few fire for nearly as many samples, of all and of every part of them. Hardly any honest ones
    do, so that only these are compared one by one.
    """
    samples, reached = len(fires), fires.sum(0)
    some = (reached >= FEW) & (reached <= samples - FEW)
    parts = fires[: samples // _PARTS * _PARTS].reshape(_PARTS, -1, fires.shape[1])
    of_part = parts.sum(1).T
    alike = (torch.cdist(of_part, of_part, p=1) < needed).fill_diagonal_(False)
    opposite = torch.cdist(of_part, parts.shape[1] - of_part, p=1) < needed
    near = (alike | opposite) & some & some[:, None]
    units = near.any(1).nonzero().flatten()
    few = (reached < samples) & (reached > samples - needed)
    if len(units):
        few[units] |= _nearest(fires[:, units]) < needed
    return few


def _nearest(fires: Tensor) -> Tensor:
    """(units,) the fewest samples that only one of a unit and another one fires for, or that both do or neither."""
    reached = fires.sum(0)
    apart = (fires.T @ fires).mul_(-2).add_(reached).add_(reached[:, None])
    return torch.minimum(apart, len(fires) - apart).fill_diagonal_(torch.inf).amin(1)
