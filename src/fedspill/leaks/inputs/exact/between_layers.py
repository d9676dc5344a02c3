"""What lies between two linear layers: any map of a single sample's values, with its derivative pushed and pulled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover


class Between(ABC):
    """A differentiable map R^m -> R^m of one sample, such as an activation, with or without a layer norm before it."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """(R, m) from (R, m)."""

    @abstractmethod
    def push(self, z: Tensor, columns: Tensor) -> Tensor:
        """(R, m, n) the Jacobian at each z (R, m) times columns (m, n)."""

    @abstractmethod
    def pull(self, z: Tensor, columns: Tensor) -> Tensor:
        """(m, k) the transposed Jacobian at z (m,) times columns (m, k)."""


@final
@dataclass(frozen=True, eq=False)
class Elementwise(Between):
    """An activation: its Jacobian is diagonal."""

    function: Callable[[Tensor], Tensor]

    def value(self, z: Tensor) -> Tensor:
        return self.function(z)

    def slope(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(z).sum(), [z])
        return slope

    def push(self, z: Tensor, columns: Tensor) -> Tensor:
        return self.slope(z)[:, :, None] * columns

    def pull(self, z: Tensor, columns: Tensor) -> Tensor:
        return self.slope(z)[:, None] * columns


@final
@dataclass(frozen=True, eq=False)
class PerSample(Between):
    """Anything else that treats samples one by one, such as layer norm and activation."""

    function: Callable[[Tensor], Tensor]

    def value(self, z: Tensor) -> Tensor:
        return self.function(z)

    def push(self, z: Tensor, columns: Tensor) -> Tensor:
        # The pull is linear in what is pulled; its own transpose is the push.
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            pulled = torch.zeros_like(z, requires_grad=True)
            (back,) = torch.autograd.grad(self.function(z), [z], pulled, create_graph=True)
            along = columns.T[:, None].expand(-1, *z.shape)
            (pushed,) = torch.autograd.grad(back, [pulled], along, is_grads_batched=True)
        return pushed.permute(1, 2, 0)

    def pull(self, z: Tensor, columns: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (pulled,) = torch.autograd.grad(self.function(z[None])[0], [z], columns.T, is_grads_batched=True)
        return pulled.T


_ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.ELU,
    nn.SiLU,
    nn.Softplus,
    nn.SELU,
    nn.CELU,
    nn.Mish,
    nn.Identity,
    nn.Hardtanh,
    nn.ReLU6,
)


def between_of(modules: list[nn.Module]) -> Between:
    """The map that these modules make of a single sample, in float64; raises CannotRecover where there is none."""
    active = [module for module in modules if not isinstance(module, nn.Dropout | nn.Flatten | nn.Identity)]
    dropped = [m for m in modules if isinstance(m, nn.Dropout) and m.p > 0]
    if dropped:
        raise CannotRecover("dropout between the first two layers switches units off at random")
    for module in active:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise CannotRecover("batch normalisation between the first two layers mixes the samples of a step")
        if not isinstance(module, (*_ELEMENTWISE, nn.LayerNorm)):
            raise CannotRecover(
                f"{type(module).__name__} between the first two layers is not known to treat samples one by one"
            )
    chain = nn.Sequential(*active).double().eval()
    for parameter in chain.parameters():
        parameter.requires_grad_(False)
    kind = PerSample if any(isinstance(module, nn.LayerNorm) for module in active) else Elementwise
    return kind(_out_of_place(chain))


def _out_of_place(chain: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """Activations that work in place would change what they are asked about."""
    return lambda z: chain(z.clone())
