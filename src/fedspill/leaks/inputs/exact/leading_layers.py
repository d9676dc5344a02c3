"""Which linear layers lead a network: two give a batch exactly, one gives a single sample."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedspill.leaks.inputs.exact.between_layers import Between, between_of


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer by its parameter names, with its values in float64."""

    weight_name: str
    bias_name: str | None
    weight: Tensor  # (m, d)
    bias: Tensor | None  # (m,)


@dataclass(frozen=True, eq=False)
class Pair:
    """The first two layers with parameters, both linear, and what lies between them."""

    first: Linear
    second: Linear
    between: Between


def leading_pair(model: nn.Module) -> Pair | str:
    """The pair of a network that is a chain of modules, else why it has none."""
    chain = chain_of(model)
    if isinstance(chain, str):
        return chain
    linear = [index for index, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)]
    if len(linear) < 2:
        return "the network has fewer than two linear layers"
    one, two = linear[:2]
    if any(not isinstance(module, nn.Flatten | nn.Identity) for _, module in chain[:one]):
        return f"the first linear layer does not read the input itself ({type(chain[0][1]).__name__} comes before it)"
    between = between_of([copy.deepcopy(module) for _, module in chain[one + 1 : two]])
    if isinstance(between, str):
        return between
    return Pair(_linear(*chain[one]), _linear(*chain[two]), between)


def chain_of(model: nn.Module) -> list[tuple[str, nn.Module]] | str:
    """The leaf modules of nested nn.Sequential in the order they run, by name."""
    if not isinstance(model, nn.Sequential):
        return f"{type(model).__name__} is not a chain of modules (nn.Sequential), so what runs after what is not known"
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_children():
        if isinstance(module, nn.Sequential):
            inner = chain_of(module)
            assert not isinstance(inner, str)
            found += [(f"{name}.{under}", leaf) for under, leaf in inner]
        else:
            found.append((name, module))
    seen = [id(module) for _, module in found if list(module.parameters(recurse=False))]
    if len(set(seen)) < len(seen):
        return "a layer is used more than once"
    return found


def _linear(name: str, module: nn.Module) -> Linear:
    assert isinstance(module, nn.Linear)
    bias = None if module.bias is None else module.bias.detach().double()
    return Linear(f"{name}.weight", None if bias is None else f"{name}.bias", module.weight.detach().double(), bias)


def at_weights(pair: Pair, state: Mapping[str, Tensor]) -> Pair:
    """The same layers with the values of `state`, e.g. after a local step."""

    def moved(layer: Linear) -> Linear:
        bias = None if layer.bias_name is None else state[layer.bias_name].double()
        return Linear(layer.weight_name, layer.bias_name, state[layer.weight_name].double(), bias)

    return Pair(moved(pair.first), moved(pair.second), pair.between)
