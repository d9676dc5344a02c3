"""The map between two linear layers (activation, layer norm) of a single sample, and products with its Jacobian."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.models.module_chain import kind_of


class MapBetweenLayers(ABC):
    """A differentiable map R^m -> R^m of one sample, such as an activation, with or without a layer norm before it."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """(R, m) from (R, m)."""

    @abstractmethod
    def jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        """(R, m, n) the Jacobian at each z (R, m) times columns (m, n)."""

    @abstractmethod
    def transposed_jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        """(m, k) the transposed Jacobian at z (m,) times columns (m, k)."""


@final
@dataclass(frozen=True, eq=False)
class Elementwise(MapBetweenLayers):
    """An activation: its Jacobian is diagonal."""

    function: Callable[[Tensor], Tensor]

    def value(self, z: Tensor) -> Tensor:
        return self.function(z)

    def slope(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(z).sum(), [z])
        return slope

    def jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        return self.slope(z)[:, :, None] * columns

    def transposed_jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        return self.slope(z)[:, None] * columns


@final
@dataclass(frozen=True, eq=False)
class PerSample(MapBetweenLayers):
    """Anything else that treats samples one by one, such as layer norm and activation."""

    function: Callable[[Tensor], Tensor]

    def value(self, z: Tensor) -> Tensor:
        return self.function(z)

    def jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        # Reverse mode gives J^T u, which is linear in u; differentiating that by u gives J times a vector.
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = self.function(z)
            dual = torch.zeros_like(value, requires_grad=True)
            (back,) = torch.autograd.grad(value, [z], dual, create_graph=True)
            along = columns.T[:, None].expand(-1, *z.shape)
            (product,) = torch.autograd.grad(back, [dual], along, is_grads_batched=True)
        return product.permute(1, 2, 0)

    def transposed_jacobian_times(self, z: Tensor, columns: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (product,) = torch.autograd.grad(self.function(z[None])[0], [z], columns.T, is_grads_batched=True)
        return product.T


def map_between_layers(modules: list[nn.Module], *, mixing: bool = True) -> MapBetweenLayers:
    """The map that these modules make of a single sample, in float64; raises CannotRecover where there is none.

    `mixing`: whether batch norms worked by the statistics of their batch; else they are a factor and a summand.
    """
    active = [module for module in modules if not isinstance(module, nn.Dropout | nn.Flatten | nn.Identity)]
    dropped = [m for m in modules if isinstance(m, nn.Dropout) and m.p > 0]
    if dropped:
        raise CannotRecover("dropout between the first two layers switches units off at random")
    normed = False
    for module in active:
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and mixing:
            raise CannotRecover("batch normalisation between the first two layers mixes the samples of a step")
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d):
            normed = True
        elif not _treats_values_one_by_one(module):
            raise CannotRecover(
                f"{kind_of(module)} between the first two layers is not known to treat samples one by one"
            )
    chain = nn.Sequential(*active).double().eval()
    for parameter in chain.parameters():
        parameter.requires_grad_(False)
    return (PerSample if normed else Elementwise)(_out_of_place(chain))


def _treats_values_one_by_one(module: nn.Module) -> bool:
    """Whether it is an activation, whoever wrote it: without parameters, and each value by itself, in training too."""
    if module.state_dict():
        return False
    function = _out_of_place(nn.Sequential(copy.deepcopy(module).double().train()))
    z, other = (3 * torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)).double() for seed in (0, 1))
    some = torch.arange(48).reshape(4, 12) % 3 == 0
    try:
        with torch.no_grad():
            value, of_other, of_both = function(z), function(other), function(torch.where(some, z, other))
    except Exception:  # whatever a user's module does with values that it was not written for
        return False
    return value.shape == z.shape and torch.equal(of_both, torch.where(some, value, of_other))


def _out_of_place(chain: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """The chain applied to a copy, since activations that work in place would change their input."""
    return lambda z: chain(z.clone())
