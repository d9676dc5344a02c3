"""Which linear layers lead a network: two give a batch exactly, one gives a single sample."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedspill.errors import NotAChain
from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.between_layers import MapBetweenLayers, map_between_layers
from fedspill.models.module_chain import kind_of
from fedspill.models.module_chain import module_chain as chain_of


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer by its parameter names, with its values in float64."""

    weight_name: str
    bias_name: str | None
    weight: Tensor  # (m, d)
    bias: Tensor | None  # (m,)


@dataclass(frozen=True, eq=False)
class LayerPair:
    """The first two layers with parameters, both linear, and the map between them."""

    first: LinearLayer
    second: LinearLayer
    between: MapBetweenLayers


def leading_pair(model: nn.Module, *, mixing: bool = True) -> LayerPair:
    """The pair of a network that starts as a chain of modules; raises CannotRecover where it has none.

    `mixing`: whether batch norms worked by the statistics of their batch.
    """
    chain = module_chain(model)
    linear = [index for index, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)]
    if len(linear) < 2:
        raise CannotRecover("the network does not have two linear layers, one behind the other")
    one, two = linear[:2]
    _refuse_layers_before(chain[:one])
    between = map_between_layers([copy.deepcopy(module) for _, module in chain[one + 1 : two]], mixing=mixing)
    return LayerPair(linear_layer(*chain[one]), linear_layer(*chain[two]), between)


def first_layer(model: nn.Module) -> LinearLayer:
    """The linear layer that reads the input itself; raises CannotRecover where there is none."""
    chain = module_chain(model)
    one = next((index for index, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)), None)
    if one is None:
        raise CannotRecover("the network has no linear layer that all goes through")
    _refuse_layers_before(chain[:one])
    return linear_layer(*chain[one])


def _refuse_layers_before(parts: list[tuple[str, nn.Module]]) -> None:
    for _, module in parts:
        if not isinstance(module, nn.Flatten | nn.Identity):
            raise CannotRecover(
                f"{kind_of(module)} comes before the first linear layer, which does not read the input itself"
            )


def module_chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts of the network in the order they run, by name; CannotRecover where that cannot be told."""
    try:
        return chain_of(model)
    except NotAChain as error:
        raise CannotRecover(error.problem) from None


def linear_layer(name: str, module: nn.Module) -> LinearLayer:
    """A linear module of that name, with its values in float64."""
    assert isinstance(module, nn.Linear)
    bias = None if module.bias is None else module.bias.detach().double()
    return LinearLayer(
        f"{name}.weight", None if bias is None else f"{name}.bias", module.weight.detach().double(), bias
    )


def pair_at_weights(pair: LayerPair, state: Mapping[str, Tensor]) -> LayerPair:
    """The same layers with the values of `state`, e.g. after a local step."""

    def moved(layer: LinearLayer) -> LinearLayer:
        bias = None if layer.bias_name is None else state[layer.bias_name].double()
        return LinearLayer(layer.weight_name, layer.bias_name, state[layer.weight_name].double(), bias)

    return LayerPair(moved(pair.first), moved(pair.second), pair.between)
