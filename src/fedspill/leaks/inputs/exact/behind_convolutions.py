"""A batch behind convolutions: the features of every sample exactly, then the images that have these features.

The first two linear layers give what they were fed, whatever came before (two_linear_layers.py). Those features are
known to the rounding of the gradients, so that an image is sought that the convolutions turn into them. Where there is
no second layer, or it is too narrow, images are sought in the row space of the first (images_in_row_space.py).

An image is vouched for only if nothing else has its features: two searches from unlike starts must end at the same
image, since whatever the convolutions do not see would stay as each start had it; and all images together must explain
the whole gradient.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.between_layers import map_between_layers
from fedspill.leaks.inputs.exact.certificate import WHOLE_SHARE, certify, mismatch_up_to_scale
from fedspill.leaks.inputs.exact.images_in_row_space import images_in_row_space
from fedspill.leaks.inputs.exact.images_with_features import image_from_nothing
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, LinearLayer, linear_layer, module_chain
from fedspill.leaks.inputs.exact.local_steps import pair_gradients_in
from fedspill.leaks.inputs.exact.reckoned_time import OUT_OF_TIME, TimeLeft
from fedspill.leaks.inputs.exact.two_linear_layers import (
    RecoveredBatch,
    RootSearchEffort,
    recover_batch,
)
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.objectives import SquaredDistance
from fedspill.leaks.inputs.search.optimizers import Adam
from fedspill.leaks.inputs.search.priors import TotalVariation
from fedspill.leaks.inputs.search.search import Recipe, one_hot, reconstruct

FEATURES_CERTAIN = 0.02  # distance of what a sample sends back from what was solved for, as unit vectors
# Behind max pools: many starts, and as little total variation as settles what the features leave open.
BY_PRIOR = Recipe(
    SquaredDistance(per_tensor=True),
    Adam(lr=0.3, steps=800, schedule="cosine"),
    800,
    priors=(TotalVariation(1e-4),),
    restarts=16,
)
REACHED = 1e-5  # loss of an image that has the features; starts that end elsewhere were above 1e-3
MOST_BEHIND_POOLS = 1_024  # pixels of all images of a batch: an image of 64 takes a second
SAME_IMAGE = 1e-3  # root mean square difference of two searches' images, relative: 60 dB
EXPLAINED = 1e-3  # share of the whole gradient that certified images may leave


_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


@dataclass(frozen=True, eq=False)
class Convolutions:
    """The part of a network below its first linear layer, in float64, and the pair of it and the next one, or why there
    is none."""

    below: nn.Sequential
    first: LinearLayer
    pair_or_why: LayerPair | str

    @property
    def pair(self) -> LayerPair:
        """Raises CannotRecover where there is none."""
        if isinstance(self.pair_or_why, str):
            raise CannotRecover(self.pair_or_why)
        return self.pair_or_why

    def may_determine(self, shape: tuple[int, ...]) -> bool:
        """Whether features can tell images: pooling leaves most of them open, and so do fewer features than pixels."""
        pools = any(isinstance(module, _POOLS) for module in self.below.modules())
        return not pools and self.has_enough_features(shape)

    def has_enough_features(self, shape: tuple[int, ...]) -> bool:
        return self.first.weight.shape[1] >= math.prod(shape)


def has_convolutions(model: nn.Module) -> bool:
    """Whether there are any in the network."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def convolutions_below(model: nn.Module, *, mixing: bool = True) -> Convolutions:
    """Raises CannotRecover where the network does not begin with convolutions that a linear layer follows.

    `mixing`: whether batch norms worked by the statistics of their batch.
    """
    chain = module_chain(model)
    linear = [index for index, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)]
    if not linear:
        raise CannotRecover("the network has no linear layer that all goes through")
    one = linear[0]
    parts = [module for _, module in chain[:one]]
    if not any(isinstance(module, nn.Conv2d) for module in parts):
        raise CannotRecover("there is no convolution below the first linear layer")
    for module in parts:
        drops = isinstance(module, nn.Dropout) and module.p > 0
        if drops or (mixing and isinstance(module, nn.modules.batchnorm._BatchNorm)):
            raise CannotRecover(f"{type(module).__name__} below the first linear layer is not undone")
    below = nn.Sequential(*(copy.deepcopy(module) for module in parts)).double().eval().requires_grad_(False)
    first = linear_layer(*chain[one])
    if len(linear) < 2:
        return Convolutions(below, first, "the network does not have two linear layers, one behind the other")
    two = linear[1]
    try:
        between = map_between_layers([copy.deepcopy(module) for _, module in chain[one + 1 : two]], mixing=mixing)
    except CannotRecover as refusal:
        return Convolutions(below, first, refusal.problem)
    return Convolutions(below, first, LayerPair(first, linear_layer(*chain[two]), between))


def batch_behind_convolutions(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, effort: RootSearchEffort, rng: torch.Generator
) -> RecoveredInputs:
    """All images of one step; raises CannotRecover where the structure does not allow it."""
    network = convolutions_below(attacked.model, mixing=bool(attacked.norms.by_batch))
    for name, parameter in attacked.model.named_parameters():
        if parameter.requires_grad and name not in attacked.gradients:
            raise CannotRecover(f"the update holds no {name!r}, as where a layer is frozen")
    usual = usual_norm(network.below, shape, rng)
    try:
        pair, found = network.pair, _features(network.pair, attacked, replace(effort, scale=usual), rng)
    except CannotRecover:
        answer = _by_images(network, None, shape, attacked, classes, usual, effort, rng)
        if len(answer.samples) < attacked.samples:
            raise
        return answer
    answer = _by_images(network, found, shape, attacked, classes, usual, effort, rng)
    if len(answer.samples):
        return answer
    if not len(found.x):
        return RecoveredInputs.none(f"no features are a root of the span condition: {found.why_not_whole}", tried=True)
    bias = 0 if pair.first.bias is None else pair.first.bias
    first = pair.first.weight_name.rpartition(".")[0]
    certificate = certify(attacked.model, first, found.x @ pair.first.weight.T + bias, found.delta)
    sure = (certificate.error < FEATURES_CERTAIN) & (pair.first.bias is not None)
    if not network.has_enough_features(shape):
        return _features_only(int(sure.sum()), attacked)
    return _behind_pools(network, found.x, sure, certificate.labels, shape, attacked, rng)


def _features(
    pair: LayerPair, attacked: AttackedMessage, effort: RootSearchEffort, rng: torch.Generator
) -> RecoveredBatch:
    """What the pair was fed; raises CannotRecover."""
    units, features = pair.first.weight.shape
    room = min(units, features, len(pair.second.weight)) - 1
    if attacked.samples > room:
        raise CannotRecover(f"{attacked.samples} samples do not fit into the linear pair, which holds {room}")
    return recover_batch(pair, pair_gradients_in(attacked.gradients, pair), rng, attacked.samples, effort)


def _by_images(
    network: Convolutions,
    found: RecoveredBatch | None,
    shape: tuple[int, ...],
    attacked: AttackedMessage,
    classes: int,
    usual: float,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """Images in the row space of the first linear layer, beginning beside those that have the features `found`."""
    units, layer = len(network.first.weight), network.first
    if layer.weight_name not in attacked.gradients or attacked.samples >= units or not network.may_determine(shape):
        return RecoveredInputs.none("the first linear layer does not tell the images", tried=False)
    near = torch.zeros(0, *shape, dtype=torch.float64)
    if found is not None and len(found.x):
        near = image_from_nothing(network.below, found.x, shape)
    time = TimeLeft(effort.seconds)
    bias = None if layer.bias_name is None else attacked.gradients[layer.bias_name].double()
    seen = (attacked.gradients[layer.weight_name].double(), bias)
    images = images_in_row_space(network.below, usual, attacked.model, layer, seen, attacked.samples, near, rng, time)
    whole = math.inf
    if len(images.x) == attacked.samples:
        targets = one_hot(images.labels, classes).double()
        whole = mismatch_up_to_scale(gradients_of(attacked.model), attacked.gradient_list, images.x, targets)[0]
    certified = (images.outside < FEATURES_CERTAIN) & (images.unlike < SAME_IMAGE)
    if len(images.x):
        certified &= (images.share / images.share.median() - 1).abs() < WHOLE_SHARE
    certified &= (whole < EXPLAINED) & (bias is not None)
    lacking = attacked.samples - len(images.x)
    why = "" if not lacking else f"{len(images.x)} of {attacked.samples} images were found before the search gave up"
    why = f"{why}: {OUT_OF_TIME}" if lacking and time.is_over else why
    route = f"a linear {'layer' if found is None else 'pair'} behind convolutions"
    return RecoveredInputs(images.x, certified, images.labels, why, unexplained=whole, route=route)


def _features_only(sure: int, attacked: AttackedMessage) -> RecoveredInputs:
    known = f"the features of {sure} of {attacked.samples} samples are known"
    return RecoveredInputs.none(f"{known}, but the layers below do not determine the images", tried=True)


def _behind_pools(
    network: Convolutions,
    features: Tensor,
    sure: Tensor,
    labels: Tensor,
    shape: tuple[int, ...],
    attacked: AttackedMessage,
    rng: torch.Generator,
) -> RecoveredInputs:
    """Smooth images that have the features which are certain. Others may have them too, so nobody vouches for these.

    A max pool has many valleys: of several starts the one that comes nearest to the features is taken, and where none
    of them reaches these, there is no image.
    """
    if not bool(sure.any()) or int(sure.sum()) * math.prod(shape) > MOST_BEHIND_POOLS:
        return _features_only(int(sure.sum()), attacked)
    images, of = [], []
    for place in sure.nonzero().flatten().tolist():
        start = torch.randn(BY_PRIOR.restarts, 1, *shape, generator=rng, dtype=torch.float64) / 2

        def made(x: Tensor, targets: Tensor) -> list[Tensor]:
            return [network.below(x.flatten(0, 1)).reshape(len(x), -1)]

        seen, no_labels = [features[place]], torch.ones(1, 1)
        found = reconstruct(BY_PRIOR, made, seen, (1, *shape), 1, rng=rng, targets=no_labels, start=start)
        best = int(found.loss.argmin())
        if float(found.loss[best]) < REACHED:
            images.append(found.x[best, 0])
            of.append(place)
    if not images:
        return _features_only(int(sure.sum()), attacked)
    nobody = torch.zeros(len(images), dtype=torch.bool)
    route = "a linear pair behind pools, and smooth images that have the features"
    return RecoveredInputs(torch.stack(images).double(), nobody, labels[of], route=route)


def usual_norm(below: nn.Module, shape: tuple[int, ...], rng: torch.Generator) -> float:
    """The norm that the features of standardised images have."""
    with torch.no_grad():
        drawn = below(torch.randn(8, *shape, generator=rng, dtype=torch.float64))
    return float(drawn.flatten(1).norm(dim=1).mean())
