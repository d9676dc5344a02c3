"""Which units' sums of a round rest on few samples, alone or beside another unit's: what the gate keeps back.

What is left of a unit beside another, r, has (sum r^2)^2 / sum r^4 samples. That count takes three products of
(samples, units) with itself for all pairs of units. One of them gives sum r^2, and with the units' largest parts a
bound, by which hardly any pair can have few: only these are counted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.defenses.model_checks.isolating_units import fewest_in_pairs
from fedspill.defenses.model_checks.made_of_others import inputs_for, made_of_others

_SAME = 1e-5  # of a unit's sum: less than that is rounding, and two units get the same
_FEWEST = 8  # samples, by which pairs of units can be told apart
_MANY = 16  # pairs for each unit, from which on it is faster to count all


def rest_on_few(
    signals: Tensor, fewest: float, *, pairs: bool = False, firing: Callable[[int], Tensor] | None = None
) -> Tensor:
    """(units,) whether fewer than `fewest` samples effectively make up a unit's sum; signals (samples, units).

    With `pairs` also units that get the same as another one but for fewer samples, however wrong the model is about
    them. With `firing`, which says for whom of so many other inputs units fire, (inputs, units), also those that fire
    for all samples but fewer, or for what others make up but for fewer. A unit that is stopped by itself is no other
    one: nothing of it is sent. Of fewer than 4 times `fewest` samples a quarter is asked for; fewer than 8 say nothing
    about pairs, so that all units rest on few.
    """
    if pairs and len(signals) < _FEWEST:
        return torch.ones(signals.shape[1], dtype=torch.bool, device=signals.device)
    needed = min(fewest, len(signals) / 4)
    few = signals.abs().sum(0).square_() < needed * signals.square().sum(0).clamp_min_(1e-30)
    if pairs:
        few = _few_in_pairs(signals / signals.norm(dim=1, keepdim=True).clamp_min(1e-30), needed, few)
        if firing is not None:
            few |= _few_between(signals.sign().abs_(), needed, few, firing)
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


def _few_between(fires: Tensor, needed: float, known: Tensor, firing: Callable[[int], Tensor]) -> Tensor:
    """(units,) whether fewer than `needed` samples keep a unit from firing for all, or for what others make up.

    fires (samples, units) are zeros and ones. A server that gives each unit weights of its own in the next layer makes
    all samples tell every pair of units apart, and takes as many units together as there are classes to cancel them.
    What is left of such a sum are samples by which whom units fire for is not quite what it is made of. What all
    samples reach tells nothing: smooth activations have no other units.
    """
    samples, reached = len(fires), fires.sum(0)
    few = (reached < samples) & (reached > samples - needed)
    rest = (~(known | few) & (reached > 0) & (reached < samples)).nonzero().flatten()
    if len(rest):
        more = firing(max(0, inputs_for(len(rest)) - samples))[:, rest]
        few[rest[made_of_others(fires[:, rest], more, needed)]] = True
    return few
