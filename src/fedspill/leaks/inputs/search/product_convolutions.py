"""Convolutions of few small images as matrix products: on a GPU the faster way where kernels are too short to fill it.

A search differentiates a network twice, for a handful of images. Convolution kernels in full precision take their time
there, however little there is to do. All windows of the images as columns of one matrix make a convolution, and every
derivative of it, a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Pair: TypeAlias = tuple[int, int]
P = ParamSpec("P")
T = TypeVar("T")


@final
class NoConvolutions(RuntimeError):
    """Work that was to be done by products has no convolutions."""


def by_products(work: Callable[P, T]) -> Callable[P, T]:
    """The work with its convolutions as products. It raises NoConvolutions, once done, if there were none."""

    def done(*args: P.args, **kwargs: P.kwargs) -> T:
        with _ProductConvolutions() as mode:
            made = work(*args, **kwargs)
        if not mode.met:
            raise NoConvolutions
        return made

    return done


def product_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """x (B, channels, height, width) by weight (out, channels, *window) to (B, out, rows, columns).

    What comes out lies in memory with its channels first, as the next such layer wants it.
    """
    batch, channels, height, width = x.shape
    out, _, tall, wide = weight.shape
    rows, columns = (
        (size + 2 * edge - apart * (reach - 1) - 1) // step + 1
        for size, edge, apart, reach, step in zip((height, width), padding, dilation, (tall, wide), stride, strict=True)
    )
    # One image of many planes: windows are cut from each plane by itself, by one kernel for the whole batch.
    planes = x.transpose(0, 1).reshape(1, channels * batch, height, width)
    cells, places = tall * wide, rows * columns
    if (cells, stride, padding) != (1, (1, 1), (0, 0)):  # else pixels are the windows
        planes = nn.functional.unfold(planes, (tall, wide), dilation, padding, stride)
    windows = planes.view(channels, batch, cells, places).transpose(1, 2).reshape(channels * cells, batch * places)
    made = weight.flatten(1) @ windows
    if bias is not None:
        made = made + bias[:, None]
    return made.view(out, batch, rows, columns).transpose(0, 1)


@final
class _ProductConvolutions(TorchFunctionMode):
    """Whatever is called while it is entered, a convolution of a batch of images becomes a product."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.conv2d:
            made = _as_product(*args, **(kwargs or {}))
            if made is not None:
                self.met = True
                return made
        return func(*args, **(kwargs or {}))


def _as_product(
    input: Tensor,  # named as torch names it, since it may be handed over by name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """None where it is no plain convolution of a batch of images."""
    if groups != 1 or isinstance(padding, str) or input.ndim != 4:
        return None
    return product_convolution(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation))


def _pair(value: int | Sequence[int]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
