"""Steps I and II for a model that is trained meanwhile: features stay nearly the same, gradients v may do as they like.

A ReLU that a step of training turns on or off changes v at once, by far more than the step itself, and no prediction
gets that right. But each round's weight gradient has the h_n of its batch as column space whatever the v are. So the
directions of h come from intersecting column spaces, each round's own v follow from them, and what makes those agree
with the round's bias gradient is the length of h. Only the small and smooth change of h is left to be taken out
(moving.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.attacks.cafe.observed import Heard, Observed
from fedspill.attacks.cafe.ranges import Directions

_RIDGE = 1e-12
_ASTRAY = 1e-3  # squared sine to its column spaces from which on a direction may be no sample's at all,
_OUTLIER = 1e3  # if it also is this many times the median


@dataclass(frozen=True, eq=False)
class Freed:
    """Features (n, d1), the mean of each sample's v (n, d2), how far off its spaces it lies (n,), and the residual."""

    h: Tensor
    v: Tensor
    error: Tensor  # infinite where nothing is known
    residual: float


def free_gradients(columns: Directions, heard: Heard, observed: Observed) -> Freed:
    """Lengths of h and all v from its directions, each round on its own but for the lengths."""
    n, outputs = observed.samples, heard.sums.shape[1]
    device = heard.sums.device
    row_of = {place: row for row, place in enumerate(heard.rows)}
    outside = (1 - columns.inside).clamp_min(0)
    gram = torch.zeros(n, n, dtype=torch.float64, device=device)
    right = torch.zeros(n, dtype=torch.float64, device=device)
    total_v = torch.zeros(n, outputs, dtype=torch.float64, device=device)
    rounds = torch.zeros(n, dtype=torch.float64, device=device)
    energy = left = torch.zeros((), dtype=torch.float64, device=device)
    for place, product in heard.products():
        if place not in row_of:
            continue
        batch = torch.unique(observed.batches[place]).to(device)
        scaled_v, wrong = _round(columns.rows[batch], outside[batch], product.double())
        gram[batch[:, None], batch] += scaled_v @ scaled_v.T
        right[batch] += scaled_v @ heard.sums[row_of[place]]
        total_v[batch] += scaled_v
        rounds[batch] += 1
        energy, left = energy + product.double().square().sum(), left + wrong
    # One number a sample: the sums over its rounds' v, each divided by the length of h, are the bias gradients.
    size = gram.diagonal().sqrt().clamp_min(1e-150)
    system = gram / size[:, None] / size
    system.diagonal().add_(_RIDGE)
    inverse_length = torch.linalg.solve(system, right / size) / size
    v = total_v * (inverse_length / rounds.clamp_min(1))[:, None]
    astray = outside > max(_ASTRAY, _OUTLIER * float(outside.median()))
    unknown = astray | (rounds < 2) | (inverse_length == 0)
    h = columns.rows / torch.where(unknown, torch.inf, inverse_length)[:, None]
    error = torch.where(unknown, torch.inf, outside.sqrt())
    return Freed(h, v, error, float((left / energy.clamp_min(1e-300)).sqrt()))


def _round(directions: Tensor, outside: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """The v (k, d2) of a round times the lengths of h, by least squares from M (d1, d2), and what is left of M.

    A direction that lies outside its spaces is held down to that extent: what others explain as well is theirs.
    """
    system = directions @ directions.T
    system.diagonal().add_(_RIDGE + outside)
    v = torch.linalg.solve(system, directions @ product)
    return v, (product - directions.T @ v).square().sum()
