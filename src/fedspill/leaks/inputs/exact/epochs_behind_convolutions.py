"""Several epochs over one batch behind convolutions: what the linear pair was fed, images, and training on them again.

The convolutions move too, so that the first linear layer is fed something else at every step, and no span is exact.
Images that nearly explain the update still follow (near_samples.py). Where they explain it down to the rounding of
float32 they are vouched for, if nothing else has their features: a search from a start that was moved must come back to
the same image. What is left must not be able to move features either (error_bars.py).
"""

from __future__ import annotations

import torch

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.behind_convolutions import (
    EXPLAINED,
    SAME_IMAGE,
    convolutions_below,
)
from fedspill.leaks.inputs.exact.certain_over_epochs import certain_over_epochs
from fedspill.leaks.inputs.exact.explained_update import (
    can_be_trained_again,
    explain_update,
    is_sgd,
    room_for_rounding,
)
from fedspill.leaks.inputs.exact.images_with_features import unlike_when_moved
from fedspill.leaks.inputs.exact.many_epochs import AS_IF_UNCUT, USELESS
from fedspill.leaks.inputs.exact.near_samples import MOST_SAMPLES, nearly_explaining
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs


def epochs_behind_convolutions(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, rng: torch.Generator
) -> RecoveredInputs:
    """All images of a client; raises CannotRecover where they are too many, or steps are not those of SGD.

    Steps on parts of the samples, cut at random, are read as if each were on all of them, and nobody vouches for that.
    """
    size = attacked.samples
    if not is_sgd(attacked):
        raise CannotRecover("several local steps behind convolutions are followed only by SGD")
    network = convolutions_below(attacked.model, mixing=bool(attacked.norms.by_batch))
    pair = network.pair
    if size > MOST_SAMPLES or size >= min(*pair.first.weight.shape, len(pair.second.weight)):
        raise CannotRecover(f"{size} samples over several epochs are more than are sought at once")
    if not network.may_determine(shape):
        raise CannotRecover("the layers below the linear pair do not determine the images")
    near = nearly_explaining(attacked, shape, classes, rng)
    if near is None:
        return RecoveredInputs.none("too few samples' features nearly fulfil the span condition", tried=True)
    if near.missed > USELESS:
        return RecoveredInputs.none("no images were found that training on gives the update", tried=True)
    certified, labels = torch.zeros(size, dtype=torch.bool), near.labels
    if near.missed < min(room_for_rounding(attacked), EXPLAINED) and pair.first.bias is not None:
        answer = explain_update(attacked, near.x, classes, near.labels)
        labels = answer.labels
        if answer.explained:
            certified = certain_over_epochs(attacked, near.x, labels, classes, near.missed, rng)
            certified &= unlike_when_moved(network.below, near.x, rng) < SAME_IMAGE
    route = "several epochs behind convolutions, simulated"
    route += "" if can_be_trained_again(attacked) else AS_IF_UNCUT
    return RecoveredInputs(near.x, certified, labels, unexplained=near.missed, route=route)
