"""Convolutions as matrix products: what vmap makes of a convolution, a group for each network, is slow on a GPU."""

from __future__ import annotations

import copy
from typing import Any, final

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional


def by_products(model: nn.Module) -> nn.Module:
    """A copy with the same parameters, whose convolutions without bias are matrix products."""
    twin = copy.deepcopy(model)
    for name, layer in list(twin.named_modules()):
        if isinstance(layer, nn.Conv2d):
            parent, _, leaf = name.rpartition(".")
            setattr(twin.get_submodule(parent), leaf, _Product(layer))
    return twin


@final
class _Product(nn.Module):
    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        assert layer.bias is None
        assert layer.groups == 1
        self.weight = layer.weight
        self.how = (layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))

    def forward(self, x: Tensor) -> Tensor:
        patches = _Patches.apply(x.transpose(0, 1), *self.how)  # (channels, k, k, B, height, width)
        out = self.weight.flatten(1) @ patches.flatten(3).flatten(0, 2)
        return out.reshape(-1, *patches.shape[3:]).transpose(0, 1)


# Both work on the last axes of whatever comes, so that a batch of them is one of them.


@final
class _Patches(Function):
    """(..., B, H, W) to what a kernel sees of it, (..., k, k, B, height, width)."""

    @staticmethod
    def forward(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
        seen = functional.pad(x, (padding,) * 4).unfold(-2, size, stride).unfold(-2, size, stride)
        return seen.movedim((-2, -1), (-5, -4)).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.how = (*inputs[1:], *inputs[0].shape[-2:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        return _Sum.apply(slope, *ctx.how), None, None, None

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, *how: int) -> tuple[Tensor, int]:
        return _Patches.apply(x.movedim(axes[0], 0), *how), 0


@final
class _Sum(Function):
    """Its adjoint: patches are added up where they came from."""

    @staticmethod
    def forward(patches: Tensor, size: int, stride: int, padding: int, height: int, width: int) -> Tensor:
        lead, (count, rows, columns) = patches.shape[:-5], patches.shape[-3:]
        total = patches.new_zeros(*lead, count, height + 2 * padding, width + 2 * padding)
        for i in range(size):
            for j in range(size):
                total[..., i : i + stride * rows : stride, j : j + stride * columns : stride] += patches[
                    ..., i, j, :, :, :
                ]
        return total[..., padding : padding + height, padding : padding + width].contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.how = inputs[1:4]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        return _Patches.apply(slope, *ctx.how), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], patches: Tensor, *how: int) -> tuple[Tensor, int]:
        return _Sum.apply(patches.movedim(axes[0], 0), *how), 0
