"""Several epochs over one batch: samples in the span of the first layer's change that training on gives the update.

Under SGD the first layer moves by signals times inputs at every step, so that all samples lie in the row space of its
change: B unknowns for each instead of as many as it has pixels. near_samples.py finds them. They are vouched for only
if training on them gives what was sent down to the rounding of float32, and if what is left could not move them
(error_bars.py).
"""

from __future__ import annotations

import torch

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certain_over_epochs import certain_over_epochs
from fedspill.leaks.inputs.exact.certificate import is_scale_free
from fedspill.leaks.inputs.exact.explained_update import (
    can_be_trained_again,
    explain_update,
    is_sgd,
)
from fedspill.leaks.inputs.exact.gradient_rank import truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LayerPair
from fedspill.leaks.inputs.exact.mean_weights import mean_gradient
from fedspill.leaks.inputs.exact.near_samples import MOST_SAMPLES, nearly_explaining
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs

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
    if missed > USELESS:
        return RecoveredInputs.none("no samples were found that training on gives the update", tried=True)
    answer = explain_update(attacked, x, classes, near.labels)
    certified = torch.zeros(size, dtype=torch.bool)
    if answer.explained and not is_scale_free(pair):
        certified = certain_over_epochs(attacked, x, answer.labels, classes, missed, rng)
    route = "several epochs, simulated" + ("" if uncut else AS_IF_UNCUT)
    return RecoveredInputs(x, certified, answer.labels, unexplained=missed, route=route)
