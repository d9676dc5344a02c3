"""The activation functions that the papers vary, by name; none works in place, which vmap would not stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import nn

from fedspill.errors import UnknownName

Activation: TypeAlias = Literal["relu", "leaky-relu", "sigmoid", "tanh", "gelu", "elu", "identity"]

_MAKERS: dict[str, Callable[[float], nn.Module]] = {
    "relu": lambda alpha: nn.ReLU(),
    "leaky-relu": lambda alpha: nn.LeakyReLU(0.01),
    "sigmoid": lambda alpha: nn.Sigmoid(),
    "tanh": lambda alpha: nn.Tanh(),
    "gelu": lambda alpha: nn.GELU(),
    "elu": lambda alpha: nn.ELU(alpha),
    "identity": lambda alpha: nn.Identity(),
}


def activation(name: Activation, *, alpha: float = 1.0) -> nn.Module:
    """A fresh module; `alpha` is of "elu" alone, and may be negative (paper 004 uses -2)."""
    if name not in _MAKERS:
        raise UnknownName("activation", name, _MAKERS)
    return _MAKERS[name](alpha)
