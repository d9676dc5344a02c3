"""Several epochs over one batch behind convolutions: features by the sum of the steps, then images.

The convolutions move too, so that the first linear layer is fed something else at every step, and no span is exact.
The sum of the steps still gives features that are nearly right (roots_of_sums.py), and these give images. From
there all pixels are moved together until training on them, as the client did, gives what it sent. What rectifiers hide
shows nowhere in that, so that nothing is vouched for.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.behind_convolutions import convolutions_below, image_of, usual_norm
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.explained_update import can_be_trained_again, labels_by_last_layer, trained_again
from fedspill.leaks.inputs.exact.local_steps import pair_gradients_in
from fedspill.leaks.inputs.exact.many_epochs import USEFUL
from fedspill.leaks.inputs.exact.roots_of_sums import roots_of_sum
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.objectives import SquaredDistance
from fedspill.leaks.inputs.search.optimizers import Lbfgs
from fedspill.leaks.inputs.search.search import Recipe, one_hot, reconstruct

MOST_SAMPLES = 12  # each step of the search is a run of the whole local training
SEARCH = Recipe(SquaredDistance(per_tensor=True), Lbfgs(history=30, line_search=True), 100, enough=1e-9)


def epochs_behind_convolutions(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, rng: torch.Generator
) -> RecoveredInputs:
    """All images of a client that trains on all of them at every step; raises CannotRecover for any other."""
    size = attacked.samples
    if not can_be_trained_again(attacked):
        raise CannotRecover("several epochs are followed only by SGD, each step on all samples of the client")
    network = convolutions_below(attacked.model, mixing=bool(attacked.norms.by_batch))
    pair = network.pair
    if size > MOST_SAMPLES or size >= min(*pair.first.weight.shape, len(pair.second.weight)):
        raise CannotRecover(f"{size} samples over several epochs are more than are sought at once")
    if not network.may_determine(shape):
        raise CannotRecover("the layers below the linear pair do not determine the images")
    mean = {name: tensor / attacked.step_weight for name, tensor in attacked.gradients.items()}
    norm = usual_norm(network.below, shape, rng)
    near = roots_of_sum(pair, pair_gradients_in(mean, pair), size, attacked.steps, rng, scale=norm, fed_alike=False)
    if not len(near):
        return RecoveredInputs.none("no sample's features nearly fulfil the span condition", tried=True)
    start = torch.zeros(size, *shape, dtype=torch.float64)  # what was not found begins as a grey image
    start[: len(near)] = image_of(network.below, near, start[: len(near)].clone(), rng)
    targets = one_hot(labels_by_last_layer(attacked, start), classes)
    # Single precision is enough to come near, and takes half the time.
    light = replace(
        attacked,
        model=copy.deepcopy(attacked.model).float(),
        gradients={name: tensor.float() for name, tensor in attacked.gradients.items()},
    )
    found = reconstruct(
        SEARCH,
        trained_again(light),
        light.gradient_list,
        (size, *shape),
        classes,
        rng=rng,
        targets=targets,
        start=start[None],
    )
    x = found.x[0].double()
    missed, _ = mismatch_up_to_scale(trained_again(attacked), attacked.gradient_list, x, targets.double())
    if missed > USEFUL:
        return RecoveredInputs.none("no images were found that training on gives the update", tried=True)
    unsure = torch.zeros(size, dtype=torch.bool)
    return RecoveredInputs(
        x, unsure, targets.argmax(1), unexplained=missed, route="several epochs behind convolutions, simulated"
    )
