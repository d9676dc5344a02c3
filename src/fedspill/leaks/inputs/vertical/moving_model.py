"""Steps I and II for a model that is trained meanwhile: features stay nearly the same, gradients v may do as they like.

A ReLU that a step of training turns on or off changes v at once, by far more than the step itself, and no prediction
gets that right. But each round's weight gradient has the h_n of its batch as column space whatever the v are. So the
directions of h come from intersecting column spaces, each round's own v follow from them, and what makes those agree
with the round's bias gradient is the length of h. Only the small and smooth change of h is left to be taken out
(moving.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.intersect_row_spaces import Directions
from fedspill.leaks.inputs.vertical.inverse_diagonal import inverse_diagonal
from fedspill.leaks.inputs.vertical.separate_products import factorised
from fedspill.leaks.inputs.vertical.server_observations import Heard, Observed

_RIDGE = 1e-12
_ASTRAY = 1e-3  # squared sine to its column spaces from which on a direction may be no sample's at all,
_OUTLIER = 1e3  # if it also is this many times the median
_TURNS = 5  # of weighing the rounds anew
_ROUNDING = 1e-7  # relative error of a bias gradient in float32
_UNSURE = 3e-3  # relative error from which on a length is not vouched for
_TINY = 1e-60


@dataclass(frozen=True, eq=False)
class Freed:
    """Features (n, d1), the mean of each sample's v (n, d2), how far off its spaces it lies (n,), and the residual."""

    h: Tensor
    v: Tensor
    error: Tensor  # infinite where nothing is known
    doubtful: Tensor  # (n,) bool: the length of its h may be another
    residual: float


def free_gradients(columns: Directions, heard: Heard, observed: Observed) -> Freed:
    """Lengths of h and all v from its directions, each round on its own but for the lengths."""
    n, outputs = observed.samples, heard.sums.shape[1]
    device = heard.sums.device
    row_of = {place: row for row, place in enumerate(heard.rows)}
    outside = (1 - columns.inside).clamp_min(0)
    mixed = (outside / columns.gap.clamp_min(_TINY)).clamp_max(1)
    total_v = torch.zeros(n, outputs, dtype=torch.float64, device=device)
    count = torch.zeros(n, dtype=torch.float64, device=device)
    energy = left = torch.zeros((), dtype=torch.float64, device=device)
    rounds = []
    for place, product in heard.products():
        if place not in row_of:
            continue
        batch = torch.unique(observed.batches[place]).to(device)
        scaled_v, variance, wrong = _round(columns.rows[batch], outside[batch], mixed[batch], product.double())
        rounds.append(_Round(batch, scaled_v, variance, heard.sums[row_of[place]]))
        total_v[batch] += scaled_v
        count[batch] += 1
        energy, left = energy + product.double().square().sum(), left + wrong
    inverse_length, doubt = _lengths(rounds, n)
    v = total_v * (inverse_length / count.clamp_min(1))[:, None]
    astray = outside > max(_ASTRAY, _OUTLIER * float(outside.median()))
    unknown = astray | (count < 2) | (inverse_length == 0)
    h = columns.rows / torch.where(unknown, torch.inf, inverse_length)[:, None]
    error = torch.where(unknown, torch.inf, outside.sqrt())
    return Freed(h, v, error, doubt > _UNSURE, float((left / energy.clamp_min(1e-300)).sqrt()))


@dataclass(frozen=True, eq=False)
class _Round:
    """Of the samples (k,) of a round, their v (k, d2) times the lengths of h, and the sum (d2,) of the v themselves."""

    batch: Tensor
    scaled_v: Tensor
    variance: Tensor  # (k,) of each coordinate of scaled_v
    total: Tensor


def _round(directions: Tensor, outside: Tensor, mixed: Tensor, product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The v (k, d2) of a round times the lengths of h, by least squares from M (d1, d2); their variances, what is left.

    A direction that lies outside its spaces is held down to that extent: what others explain as well is theirs.
    Rounding mixes a direction with the second-best in its spaces, by a share `mixed` (k,) of squares; if that is the
    direction of a sample here, v of the one goes to the other, and nothing is left of M that would show it.
    """
    system = directions @ directions.T
    system.diagonal().add_(_RIDGE + outside)
    inverse = torch.linalg.inv(system)
    v = inverse @ (directions @ product)
    left = (product - directions.T @ v).square().sum()
    astray = (mixed * v.square().sum(1)).sum() / v.shape[1]
    return v, left / product.numel() * inverse.diagonal().clamp_min(0) + astray, left


def _lengths(rounds: Sequence[_Round], samples: int) -> tuple[Tensor, Tensor]:
    """One over the length of each h (n,), and the relative standard error of that (n,).

    The v of a round, each divided by the length of its h, add up to the bias gradient. A sample that left next to
    nothing in the weight gradients (a blank tile) is in the bias gradient all the same, and its v is what rounding
    left, divided by a tiny length. Each round is believed as far as its samples allow, by the lengths found before.
    """
    device = rounds[0].total.device
    floor = (torch.stack([one.total.square().mean() for one in rounds]).mean() * _ROUNDING**2).clamp_min(_TINY)
    variance = torch.ones(len(rounds), dtype=torch.float64, device=device)
    active = sum(int((one.scaled_v != 0).any(0).sum()) for one in rounds)
    for _ in range(_TURNS):
        believed = variance
        gram = torch.zeros(samples, samples, dtype=torch.float64, device=device)
        right = torch.zeros(samples, dtype=torch.float64, device=device)
        for unsure, one in zip(believed, rounds, strict=True):
            gram[one.batch[:, None], one.batch] += one.scaled_v @ one.scaled_v.T / unsure
            right[one.batch] += one.scaled_v @ one.total / unsure
        size = gram.diagonal().sqrt().clamp_min(1e-150)
        system = gram / size[:, None] / size
        system.diagonal().fill_(1)  # as it is, but for samples that no round holds
        factor = factorised(system, _RIDGE)
        found = torch.cholesky_solve((right / size)[:, None], factor)[:, 0] / size
        variance = floor + torch.stack([found[one.batch].square() @ one.variance for one in rounds])
    apart = torch.stack([(one.total - found[one.batch] @ one.scaled_v).square().sum() for one in rounds])
    excess = ((apart / believed).sum() / max(active - samples, 1)).clamp_min(1).sqrt()
    spread = excess * inverse_diagonal(factor).most.sqrt() / size
    return found, spread / found.abs().clamp_min(1e-300)
