"""Steps I and II for a model that is trained meanwhile: features stay nearly the same, gradients v may change freely.

A ReLU that a training step turns on or off changes v at once, by far more than the step itself, so v cannot be
predicted from round to round. But the column space of a round's weight gradient is spanned by the h_n of its batch
whatever the v are. So the directions of h come from intersecting column spaces, each round's own v follow from them,
and the lengths of h are those for which these v add up to the round's bias gradient. What remains is the small and
smooth change of h, which undo_model_change.py takes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.intersect_row_spaces import Directions
from fedspill.leaks.inputs.vertical.inverse_diagonal import inverse_diagonal
from fedspill.leaks.inputs.vertical.separate_products import factorised
from fedspill.leaks.inputs.vertical.server_observations import PartyUploads, ServerObservations

_RIDGE = 1e-12
# A direction belongs to no sample if its squared sine to its column spaces exceeds both of these.
_ASTRAY = 1e-3
_OUTLIER = 1e3  # times the median
_TURNS = 5  # times that the rounds are weighted again
_ROUNDING = 1e-7  # relative error of a bias gradient in float32
_UNSURE = 3e-3  # relative error from which on a length is not vouched for
_TINY = 1e-60


@dataclass(frozen=True, eq=False)
class PerRoundGradients:
    """Features (n, d1), the mean of each sample's v (n, d2), how far off its spaces it lies (n,), and the residual."""

    h: Tensor
    v: Tensor
    error: Tensor  # infinite where nothing is known
    doubtful: Tensor  # (n,) bool: the length of its h may be another
    residual: float


def per_round_gradients(columns: Directions, uploads: PartyUploads, observed: ServerObservations) -> PerRoundGradients:
    """Lengths of h and all v from the directions of h; rounds share nothing but the lengths."""
    n, outputs = observed.samples, uploads.sums.shape[1]
    device = uploads.sums.device
    row_of = {place: row for row, place in enumerate(uploads.bias_places)}
    outside = (1 - columns.inside).clamp_min(0)
    mixed = (outside / columns.gap.clamp_min(_TINY)).clamp_max(1)
    total_v = torch.zeros(n, outputs, dtype=torch.float64, device=device)
    count = torch.zeros(n, dtype=torch.float64, device=device)
    energy = left = torch.zeros((), dtype=torch.float64, device=device)
    rounds = []
    for place, product in uploads.products():
        if place not in row_of:
            continue
        batch = torch.unique(observed.batches[place]).to(device)
        scaled_v, variance, wrong = _solve_round(columns.rows[batch], outside[batch], mixed[batch], product.double())
        rounds.append(_RoundGradients(batch, scaled_v, variance, uploads.sums[row_of[place]]))
        total_v[batch] += scaled_v
        count[batch] += 1
        energy, left = energy + product.double().square().sum(), left + wrong
    inverse_length, doubt = _inverse_lengths(rounds, n)
    v = total_v * (inverse_length / count.clamp_min(1))[:, None]
    astray = outside > max(_ASTRAY, _OUTLIER * float(outside.median()))
    unknown = astray | (count < 2) | (inverse_length == 0)
    h = columns.rows / torch.where(unknown, torch.inf, inverse_length)[:, None]
    error = torch.where(unknown, torch.inf, outside.sqrt())
    return PerRoundGradients(h, v, error, doubt > _UNSURE, float((left / energy.clamp_min(1e-300)).sqrt()))


@dataclass(frozen=True, eq=False)
class _RoundGradients:
    """Of the samples (k,) of a round, their v (k, d2) times the lengths of h, and the sum (d2,) of the v themselves."""

    batch: Tensor
    scaled_v: Tensor
    variance: Tensor  # (k,) of each coordinate of scaled_v
    total: Tensor


def _solve_round(directions: Tensor, outside: Tensor, mixed: Tensor, product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The v (k, d2) of a round times the lengths of h, by least squares from M (d1, d2); their variances, what is left.

    A direction is penalised by how far it lies outside its spaces, so that better ones explain what both could.
    Rounding mixes a direction with the second-best in its spaces, by a share `mixed` (k,) of squares. If that is the
    direction of another sample of the round, part of the v of one sample is given to the other without any residual in
    M, so this share is added to the variance.
    """
    system = directions @ directions.T
    system.diagonal().add_(_RIDGE + outside)
    inverse = torch.linalg.inv(system)
    v = inverse @ (directions @ product)
    left = (product - directions.T @ v).square().sum()
    astray = (mixed * v.square().sum(1)).sum() / v.shape[1]
    return v, left / product.numel() * inverse.diagonal().clamp_min(0) + astray, left


def _inverse_lengths(rounds: Sequence[_RoundGradients], samples: int) -> tuple[Tensor, Tensor]:
    """One over the length of each h (n,), and the relative standard error of that (n,).

    The v of a round, each divided by the length of its h, add up to the bias gradient. A sample that left next to
    nothing in the weight gradients (a blank tile) is still in the bias gradient, but its v is rounding over a tiny
    length. So each round is weighted by the variance of its sum, which follows from the lengths of the turn before.
    """
    device = rounds[0].total.device
    floor = (torch.stack([one.total.square().mean() for one in rounds]).mean() * _ROUNDING**2).clamp_min(_TINY)
    variance = torch.ones(len(rounds), dtype=torch.float64, device=device)
    active = sum(int((one.scaled_v != 0).any(0).sum()) for one in rounds)
    for _ in range(_TURNS):
        believed = variance
        gram = torch.zeros(samples, samples, dtype=torch.float64, device=device)
        right = torch.zeros(samples, dtype=torch.float64, device=device)
        for noise, one in zip(believed, rounds, strict=True):
            gram[one.batch[:, None], one.batch] += one.scaled_v @ one.scaled_v.T / noise
            right[one.batch] += one.scaled_v @ one.total / noise
        size = gram.diagonal().sqrt().clamp_min(1e-150)
        system = gram / size[:, None] / size
        system.diagonal().fill_(1)  # as it is, but for samples that no round holds
        factor = factorised(system, _RIDGE)
        found = torch.cholesky_solve((right / size)[:, None], factor)[:, 0] / size
        variance = floor + torch.stack([found[one.batch].square() @ one.variance for one in rounds])
    apart = torch.stack([(one.total - found[one.batch] @ one.scaled_v).square().sum() for one in rounds])
    excess = ((apart / believed).sum() / max(active - samples, 1)).clamp_min(1).sqrt()
    deviation = excess * inverse_diagonal(factor).most.sqrt() / size
    return found, deviation / found.abs().clamp_min(1e-300)
