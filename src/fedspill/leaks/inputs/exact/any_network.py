"""A small batch of any network with a linear layer that reads inputs and another one that is fed anything made of them.

The row space V of the first layer's gradient holds the samples, x = V q, and that of the second layer's gradient, V2,
holds what it was fed. So every sample solves

    (I - V2 V2^T) fed(V q) = 0,

whatever the network does on the way: connections around layers, gates, several paths. Both layers are found by running
the network, and nothing is traced. The second one must be fed something that tells samples from mixtures of them: a
layer that reads the input too, or a layer norm of the first, holds every mixture of samples as well as the samples.

What a sample that was found gives of the whole gradient is known by running the network on it, with the label for which
the first layer's gradient holds what it sends back. It is taken out, and the rest is sought in what remains. All
samples together are vouched for if they give the whole gradient.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.between_layers import PerSample
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, leading_directions, room, truncated_svd
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, descend, find_roots, is_known, usual_scale
from fedspill.leaks.inputs.exact.two_linear_layers import CLEAN, SCALES
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.planting.first_layer import PlantedLayer, PlantedNetwork

MOST_SAMPLES = 24  # each is one more direction that every start of the search has to be differentiated along
MOST_INPUTS = 4_096  # values of a sample, where what the first layer reads has to be solved for them
WORST_CONDITION = 1e3  # of the map from a sample to what the first layer reads: how much rounding may grow
SAME = 1e-9  # relative, of float64 values that are equal but for rounding
USELESS = 0.5  # share of the whole gradient that samples may not leave and still be an answer
IDLE = 2  # searches in a row that find nothing new, to give up after
MIXED = 0.03  # share of what a layer is fed for a mixture of two inputs that these do not give
EXPLAINED = 1e-3  # share of the whole gradient that certified samples may leave


@dataclass(frozen=True, eq=False)
class ReadingLayer:
    """A linear layer that reads inputs, and how samples (n, *shape) follow from what it was fed (n, features)."""

    name: str
    shape: tuple[int, ...]
    inverse: Tensor | None  # (features, features); None: it reads them as they are
    offset: Tensor  # (features,) or (1,)

    def samples(self, fed: Tensor) -> Tensor:
        if self.inverse is not None:
            fed = (fed - self.offset) @ self.inverse.T
        return fed.reshape(len(fed), *self.shape)


def batch_of_any_network(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, rng: torch.Generator
) -> RecoveredInputs:
    """All samples of one step; raises CannotRecover where the network has no two such layers, or batches mix."""
    size = attacked.samples
    if attacked.steps != 1 or attacked.norms.by_batch:
        raise CannotRecover("only one step is read, in which samples do not mix")
    if size > MOST_SAMPLES:
        raise CannotRecover(f"{size} samples are more than are sought at once")
    layers = [module for module in attacked.model.modules() if isinstance(module, nn.Linear)]
    if len(layers) < 2 or all(layer.in_features != math.prod(shape) for layer in layers):
        raise CannotRecover("no linear layer reads the input itself")  # told at once, without running anything
    model = copy.deepcopy(attacked.model).requires_grad_(False)
    first, second = _two_layers(attacked, model, shape, rng)
    gradient = attacked.gradients[f"{first.name}.weight"].double()
    one = truncated_svd(gradient, size, rng)
    if one is None or one.rank != size or room(gradient) <= size:
        raise CannotRecover(f"the layer that reads inputs does not have the directions of {size} samples")
    network = PlantedNetwork(model, PlantedLayer(first.name, second, ()))
    x, labels = _peeled(attacked, network, first, one, classes, rng)
    if not len(x):
        return RecoveredInputs.none(f"no sample of {size} is a root of the span condition", tried=True)
    route = "a layer that reads inputs, and one that is fed what is made of them"
    if len(x) < size:
        return RecoveredInputs(x, torch.zeros(len(x), dtype=torch.bool), route=route)
    targets = one_hot(labels, classes).double()
    whole = mismatch_up_to_scale(gradients_of(attacked.model), attacked.gradient_list, x, targets)[0]
    if whole > USELESS:
        return RecoveredInputs.none("the samples that solve the span condition do not explain the gradient", tried=True)
    # Without a bias a sample's size follows from that of the gradient alone, which clipping changes.
    has_bias = f"{first.name}.bias" in attacked.gradients
    certified = torch.full((size,), whole < EXPLAINED and has_bias)
    return RecoveredInputs(x, certified, labels, unexplained=whole, route=route)


def _peeled(
    attacked: AttackedMessage,
    network: PlantedNetwork,
    first: ReadingLayer,
    one: TruncatedSvd,
    classes: int,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """(k, *shape) the samples that are found, and their labels; those found are taken out before others are sought.

    `one` are the directions of the first layer's gradient.
    """
    whole, tolerance = _condition(attacked.gradients, network, first, one, attacked.samples, rng)
    rest, found, labels = attacked.gradients, one.right.new_zeros(0, one.rank), torch.zeros(0, dtype=torch.int64)
    idle = 0
    while len(found) < one.rank and idle < IDLE:
        left = one.rank - len(found)
        rows = one if not len(found) else leading_directions(rest[f"{first.name}.weight"], left, rng)
        condition, near = _condition(rest, network, first, rows, left, rng)
        idle += 1
        q = one.right.new_zeros(0, left)
        for share in SCALES:
            scale = share * usual_scale(len(rows.right))
            q = find_roots(
                condition, left, scale=scale, tolerance=max(tolerance, near), rng=rng, spread=rows.sizes, known=q
            )
            if len(q) >= left:
                break
        if not len(q):
            continue
        y, residual = descend(whole, whole.y(q @ rows.right.T @ one.right), 8, weighted=False)
        for place in residual.argsort().tolist():
            root = whole.q(y[place])
            if float(residual[place]) < tolerance and not is_known(root, found) and len(found) < one.rank:
                found, idle = torch.cat([found, root[None]]), 0
        if not idle:
            x = first.samples(found @ one.right.T)
            labels = _labels(network, x, one.left, classes)
            own = gradients_of(attacked.model)(x[None], one_hot(labels, classes).double()[None])
            names = [name for name, p in attacked.model.named_parameters() if p.requires_grad]
            share_of_batch = len(x) / attacked.samples
            rest = {
                name: attacked.gradients[name] - share_of_batch * g[0].detach()
                for name, g in zip(names, own, strict=True)
            }
    return first.samples(found @ one.right.T), labels


def _condition(
    gradients: Mapping[str, Tensor],
    network: PlantedNetwork,
    first: ReadingLayer,
    rows: TruncatedSvd,
    samples: int,
    rng: torch.Generator,
) -> tuple[SpanCondition, float]:
    """The span condition of so many samples in these gradients, and what a root may leave of it."""
    two = leading_directions(gradients[f"{network.layer.second}.weight"].double(), samples, rng)
    bias = gradients.get(network.layer.bias)
    equation = None if bias is None else (rows.left.T @ bias.double()) / rows.sizes

    def fed(features: Tensor) -> Tensor:
        return _fed(network.model, first.samples(features.clone()))[network.layer.second]

    condition = SpanCondition.of(rows.right, None, PerSample(fed), two.right, equation)
    return condition, min(0.05, max(CLEAN, 2 * (rows.tail + two.tail)))


def _two_layers(
    attacked: AttackedMessage, model: nn.Module, shape: tuple[int, ...], rng: torch.Generator
) -> tuple[ReadingLayer, str]:
    """The first layer, in running order, that reads all of an input, and the first other one that has enough room."""
    size = attacked.samples
    probe = torch.randn(3, *shape, generator=rng, dtype=torch.float64)
    try:
        with torch.no_grad():
            seen = _fed(model, probe)
            alone = _fed(model, probe[:1])
            trained = [_fed(_in_training(model), probe) for _ in range(2)]
    except Exception as error:  # whatever the user's forward does with an input of another kind
        raise CannotRecover(f"the network does not run on an input of shape {tuple(shape)}") from error
    reading = None
    for name, fed in seen.items():
        if f"{name}.weight" not in attacked.gradients:
            continue
        if not torch.allclose(fed[:1], alone[name], rtol=SAME, atol=SAME):
            raise CannotRecover("the network mixes the samples of a step")
        if any(name not in one or not torch.allclose(fed, one[name], rtol=SAME, atol=SAME) for one in trained):
            raise CannotRecover("the network draws at random while it trains, or works otherwise then")
        gradient = attacked.gradients[f"{name}.weight"]
        if room(gradient) <= size:  # a gate of a few units, or a head: others may tell so many samples apart
            continue
        if reading is None:
            reading = _reading_layer(model, name, probe, fed)
        elif gradient.shape[1] >= 2 * size and _tells_mixtures(model, name, probe[0].shape, rng):
            return reading, name
    if reading is None:
        raise CannotRecover(f"no linear layer with room for {size} samples reads the input itself")
    raise CannotRecover(f"no linear layer beside the one that reads inputs has room for {size} samples")


def _tells_mixtures(model: nn.Module, name: str, shape: torch.Size, rng: torch.Generator) -> bool:
    """Whether what the layer is fed for a mixture of inputs lies outside of the span of what it is fed for these."""
    inputs = torch.randn(2, *shape, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        apart, mixed = (_fed(model, x)[name] for x in (inputs, inputs.mean(0, keepdim=True)))
    basis = torch.linalg.qr(apart.T)[0]
    outside = mixed[0] - basis @ (basis.T @ mixed[0])
    return float(outside.norm()) > MIXED * float(mixed.norm())


def _fed(model: nn.Module, x: Tensor) -> Mapping[str, Tensor]:
    """What each linear layer is fed for samples x, in running order: those that run once, on one row for each."""
    caught: dict[str, list[Tensor]] = {}  # filled in the order in which layers run
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(
                module.register_forward_pre_hook(lambda _, fed, name=name: caught.setdefault(name, []).append(fed[0]))
            )
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    once = {name: fed[0] for name, fed in caught.items() if len(fed) == 1}
    return {name: fed for name, fed in once.items() if fed.ndim == 2 and len(fed) == len(x)}


def _in_training(model: nn.Module) -> nn.Module:
    """A copy as clients run it, with batch norms that keep to their running statistics."""
    own = copy.deepcopy(model).train()
    for module in own.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    return own


def _reading_layer(model: nn.Module, name: str, probe: Tensor, fed: Tensor) -> ReadingLayer | None:
    """The layer, if what it is fed is the input, or an affine map of it that can be undone; None otherwise."""
    shape, inputs = tuple(probe.shape[1:]), math.prod(probe.shape[1:])
    if fed.shape[1] != inputs:
        return None
    if torch.equal(fed, probe.flatten(1)):
        return ReadingLayer(name, shape, None, torch.zeros(1, dtype=fed.dtype))
    if inputs > MOST_INPUTS:
        return None
    with torch.no_grad():
        offset = _fed(model, torch.zeros_like(probe[:1]))[name][0]
        matrix = (_fed(model, torch.eye(inputs, dtype=probe.dtype).reshape(inputs, *shape))[name] - offset).T
    if not torch.allclose(probe.flatten(1) @ matrix.T + offset, fed, rtol=1e-6, atol=1e-6):
        return None
    if float(torch.linalg.cond(matrix)) > WORST_CONDITION:
        return None
    return ReadingLayer(name, shape, torch.linalg.inv(matrix), offset)


def _labels(network: PlantedNetwork, x: Tensor, columns: Tensor, classes: int) -> Tensor:
    """(n,) the labels for which what samples x send back lies best in the column space (rows, B) of the gradient."""
    passed = network.passed(x)
    outside = []
    for label in range(classes):
        sent = network.sent(passed, torch.full((len(x),), label))
        outside.append((sent - (sent @ columns) @ columns.T).norm(dim=1) / sent.norm(dim=1).clamp_min(1e-300))
    return torch.stack(outside, 1).argmin(1)
