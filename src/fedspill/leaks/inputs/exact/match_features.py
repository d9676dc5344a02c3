"""One sample of a convolutional network by matching features, which needs no second derivatives.

For batch size 1 the first linear layer gives its input in closed form, and with it what is sent back to the convolution
below: delta (channels, places). That convolution's kernel gradient is delta times the patches of its input, so that the
patches are known in as many directions as delta has: all of them where there are as many channels as places. R-GAP (Zhu
and Blaschko 2021) solves such systems layer by layer; rectifiers leave the lower ones underdetermined. Here the sample
itself is sought whose features are those, through all lower layers at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.convolution_chain import invert_activation, linear_input
from fedspill.leaks.inputs.exact.leading_layers import module_chain
from fedspill.leaks.inputs.search.objectives import SquaredDistance
from fedspill.leaks.inputs.search.optimizers import Lbfgs
from fedspill.leaks.inputs.search.search import Recipe, reconstruct

FAINT = 1e-5  # directions of delta weaker than this share of the strongest are rounding of float32 gradients
PLAIN_SEARCH = Recipe(SquaredDistance(per_tensor=True), Lbfgs(history=30), 400, start="zero", enough=1e-10)
# Steps without a line search take a third of the time but sometimes diverge; then the search with one is run.
GUARDED_SEARCH = replace(PLAIN_SEARCH, optimizer=Lbfgs(history=30, line_search=True))
SOLVED = 1e-8


@dataclass(frozen=True, eq=False)
class KnownFeatures:
    """What the network makes of the sample, as far as it is known: a function of inputs (R, 1, *shape), its values."""

    of: Callable[[Tensor], list[Tensor]]
    seen: list[Tensor]
    noise: float  # relative


def sample_by_features(model: nn.Module, gradients: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """The sample (*shape) in float64 whose features are those seen, as near as the search comes."""
    known = known_features(model, gradients)
    no_labels = torch.ones(1, 1)  # the features do not depend on labels, but the search wants targets
    tries = []
    for recipe in (PLAIN_SEARCH, GUARDED_SEARCH):
        rng = torch.Generator().manual_seed(0)
        tries.append(
            reconstruct(recipe, lambda x, _: known.of(x), known.seen, (1, *shape), 1, rng=rng, targets=no_labels)
        )
        if float(tries[-1].loss) < max(SOLVED, 100 * known.noise**2):
            break
    return min(tries, key=lambda found: float(found.loss)).x[0, 0].double()


def known_features(model: nn.Module, gradients: Mapping[str, Tensor]) -> KnownFeatures:
    """The input of the first linear layer, and that of the convolution below it in the directions of its delta.

    Raises CannotRecover where the network does not give them.
    """
    chain = module_chain(copy.deepcopy(model))
    linear, fed, sent = linear_input(chain, gradients)
    at = max((i for i, (_, module) in enumerate(chain[:linear]) if isinstance(module, nn.Conv2d)), default=None)
    if at is None:
        raise CannotRecover("there is no convolution below the first linear layer")
    noise = _noise(gradients[f"{chain[linear][0]}.weight"].double())
    slope = _slope([module for _, module in chain[at + 1 : linear]], fed, noise)
    name, layer = chain[at]
    assert isinstance(layer, nn.Conv2d)
    padding = layer.padding
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(padding, str):
        raise CannotRecover("a convolution with groups, or padding other than zeros, is not solved for")
    delta = (sent * slope).reshape(layer.out_channels, -1)
    left, sizes, right = torch.linalg.svd(delta, full_matrices=False)
    rank = int((sizes > max(FAINT, 10 * noise) * sizes[0]).sum()) if float(sizes[0]) > 0 else 0
    kernel = gradients[f"{name}.weight"].double().flatten(1)
    patches = ((left[:, :rank] / sizes[:rank]).T @ kernel).float()
    below = nn.Sequential(*(module for _, module in chain[:at])).float()
    above = nn.Sequential(*(module for _, module in chain[at:linear])).float()
    directions = right[:rank].float()

    def of(x: Tensor) -> list[Tensor]:
        u = below(x.flatten(0, 1))
        cut = functional.unfold(u, layer.kernel_size, layer.dilation, padding, layer.stride)
        return [directions @ cut.transpose(1, 2), above(u).flatten(1)]

    return KnownFeatures(of, [patches, fed.float()], noise)


def _noise(gradient: Tensor) -> float:
    """What a linear layer's gradient (classes, features) has beside the one direction of its one sample, relative."""
    sizes = torch.linalg.svdvals(gradient)
    return float(sizes[1] / sizes[0]) if len(sizes) > 1 and float(sizes[0]) > 0 else 0.0


def _slope(modules: list[nn.Module], fed: Tensor, noise: float) -> Tensor:
    """The slope of the activation whose output is `fed`, all of these modules taken together."""
    active = [module for module in modules if not isinstance(module, nn.Flatten | nn.Identity | nn.Dropout)]
    if len(active) > 1:
        raise CannotRecover("more than one activation lies between the last convolution and the first linear layer")
    if not active:
        return torch.ones_like(fed)
    return invert_activation(active[0], fed, 4 * noise * float(fed.square().mean().sqrt()))[1]
