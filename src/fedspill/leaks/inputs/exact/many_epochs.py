"""Several epochs over one batch: the span of the first layer's change, and Gauss-Newton through simulated training.

Under SGD the first layer moves by signals times inputs at every step, so that all samples lie in the row space of its
change, x = V q: B unknowns for each instead of as many as it has pixels. Samples that nearly explain the update
(near_samples.py) are the start. Where they do not explain it all, and are few, they are moved together until training
on them as the client did gives what it sent. They are vouched for only if that is so down to the rounding of float32,
and if what is left could not move them (error_bars.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certain_over_epochs import certain_over_epochs
from fedspill.leaks.inputs.exact.certificate import is_scale_free
from fedspill.leaks.inputs.exact.explained_update import (
    can_be_trained_again,
    explain_update,
    is_sgd,
    room_for_rounding,
    trained_again,
)
from fedspill.leaks.inputs.exact.gradient_rank import truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LayerPair
from fedspill.leaks.inputs.exact.mean_weights import mean_gradient
from fedspill.leaks.inputs.exact.near_samples import MOST_SAMPLES, nearly_explaining
from fedspill.leaks.inputs.exact.slopes import slopes
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.search import one_hot

MOST_UNKNOWNS = 64  # B * B; each costs a run of the whole local training at every step
ITERATIONS = 25
SETTLED = 1e-4  # relative gain of a step at which nothing more is to be had
NEAR = 0.1  # share of the update that a first try may leave unexplained, for others to be worth their time
SHAKES = 2  # starts beside the first, from what it reached with as much noise as it leaves unexplained
AS_IF_UNCUT = " as if every step were on all samples"
USELESS = 0.5  # share of the update that samples may not leave and still be an answer, without a certificate


def recover_many_epochs(
    attacked: AttackedMessage,
    pair: LayerPair,
    shape: tuple[int, ...],
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """All samples of a client; raises CannotRecover where they are too many, or steps are not those of SGD.

    Steps on parts of the samples, cut at random, are read as if each were on all of them, and nobody vouches for that.
    """
    size = attacked.samples
    if not is_sgd(attacked) or size > MOST_SAMPLES:
        raise CannotRecover(f"several epochs are followed only by SGD, with {MOST_SAMPLES} samples at most")
    uncut = can_be_trained_again(attacked)
    rows = truncated_svd(mean_gradient(attacked)[pair.first.weight_name], size, rng)
    if rows is None or rows.rank != size:
        raise CannotRecover(f"the first layer's change does not have the directions of {size} samples")
    near = nearly_explaining(attacked, shape, classes, rng, effort.scale)
    if near is None:
        return RecoveredInputs.none(f"too few of {size} samples nearly fulfil the span condition", tried=True)
    x, missed = near.x, near.missed
    if uncut and missed > room_for_rounding(attacked) and size * size <= MOST_UNKNOWNS:
        start, first = x.flatten(1), pair.first.weight_name
        x, missed = _trained_like(attacked, first, start, rows.right, near.labels, shape, classes, rng, SHAKES)
    if missed > USELESS:
        return RecoveredInputs.none("no samples were found that training on gives the update", tried=True)
    answer = explain_update(attacked, x, classes, near.labels)
    certified = torch.zeros(size, dtype=torch.bool)
    if answer.explained and not is_scale_free(pair):
        certified = certain_over_epochs(attacked, x, answer.labels, classes, missed, rng)
    route = "several epochs, simulated" + ("" if uncut else AS_IF_UNCUT)
    return RecoveredInputs(x, certified, answer.labels, unexplained=missed, route=route)


def _trained_like(
    attacked: AttackedMessage,
    first: str,
    start: Tensor,
    basis: Tensor,
    labels: Tensor,
    shape: tuple[int, ...],
    classes: int,
    rng: torch.Generator,
    shakes: int,
) -> tuple[Tensor, float]:
    """The samples (B, *shape) of the span `basis` (d, r) that come nearest, and what they leave of the update."""
    names = [name for name, p in attacked.model.named_parameters() if p.requires_grad]
    trained, targets = trained_again(attacked), one_hot(labels, classes).double()[None]

    def flat(tensors: list[Tensor]) -> Tensor:
        # The first layer moves within the row space only, so that its few coordinates there are all of it.
        return torch.cat(
            [(g @ basis if name == first else g).flatten() for name, g in zip(names, tensors, strict=True)]
        )

    seen = flat(attacked.gradient_list)

    def missed_by(q: Tensor) -> Tensor:
        x = (q @ basis.T).reshape(1, len(q), *shape)
        missed: Tensor = (flat([g[0] for g in trained(x, targets)]) - seen) / seen.norm()
        return missed

    room = room_for_rounding(attacked)
    best, least = _descend(missed_by, start @ basis, room / 2)
    for _ in range(shakes):
        if least < room or least > NEAR:
            break
        # A rectifier that is on for the candidate and off for the sample is a kink, which slopes do not lead across.
        shaken = best * (1 + least * torch.randn(best.shape, generator=rng, dtype=best.dtype))
        q, missed = _descend(missed_by, shaken, room / 2)
        if missed < least:
            best, least = q, missed
    return (best @ basis.T).reshape(len(best), *shape), least


def _descend(missed_by: Callable[[Tensor], Tensor], q: Tensor, enough: float) -> tuple[Tensor, float]:
    """Levenberg-Marquardt from q (B, r) until `enough` is met: where it ends, and the norm of what is missed there."""
    rest, damping = missed_by(q).detach(), 1e-3
    cost = float(rest.square().sum())
    for _ in range(ITERATIONS if cost > enough**2 else 0):
        slope = slopes(missed_by, q)
        curvature, downhill = slope.T @ slope, slope.T @ rest
        before = cost
        while damping < 1e8:
            ridge = torch.diag(damping * curvature.diagonal().clamp_min(1e-300))
            tried = q - torch.linalg.solve_ex(curvature + ridge, downhill)[0].reshape(q.shape)
            new = missed_by(tried).detach()
            if float(new.square().sum()) < cost:
                q, rest, cost, damping = tried, new, float(new.square().sum()), damping * 0.1
                break
            damping *= 5
        if not cost < before * (1 - SETTLED) or cost < enough**2:
            break
    return q, math.sqrt(cost)
