"""One pass over a tensor of two models: how far its rows and columns moved, and its largest entry."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[np.floating[Any]]
_BLOCK = 1 << 15  # entries at a time: they stay in the processor's cache, and no copy of the model is made


@final
class Look(NamedTuple):
    """Sums of squared changes of a tensor; NaN or infinite where its entries are, or where they are too large."""

    rows: Array  # (units,)
    columns: Array | None  # (inputs,) None where the tensor is no matrix; of a convolution its channels
    entries: int
    top: float  # the largest magnitude in it now


def look(before: Tensor, now: Tensor) -> Look:
    """Two tensors of the same shape."""
    shape = now.shape
    old, new = _array(before), _array(now)
    if len(shape) < 2:
        squares = new - old
        return Look((squares * squares).reshape(-1), None, new.size, _top(new))
    old, new = old.reshape(shape[0], -1), new.reshape(shape[0], -1)
    height = max(_BLOCK // new.shape[1], 1)
    if len(new) <= height:
        rows, columns, top = _block(old, new)
    else:
        parts = [_block(old[i : i + height], new[i : i + height]) for i in range(0, len(new), height)]
        rows, columns = np.concatenate([part[0] for part in parts]), sum((part[1] for part in parts[1:]), parts[0][1])
        top = max(part[2] for part in parts)
    if len(shape) > 2:
        columns = columns.reshape(shape[1], -1).sum(1)
    return Look(rows, columns, new.size, top)


def _block(old: Array, new: Array) -> tuple[Array, Array, float]:
    """Sums along rows and columns as products with ones, which are twice as fast as sums; and the largest entry."""
    squares = new - old
    squares *= squares
    height, width = squares.shape
    return squares @ np.ones(width, new.dtype), np.ones(height, new.dtype) @ squares, _top(new)


def top_of(tensor: Tensor) -> float:
    return _top(_array(tensor))


def _top(values: Array) -> float:
    return max(float(np.maximum.reduce(values, None)), -float(np.minimum.reduce(values, None)))


def _array(tensor: Tensor) -> Array:
    if tensor.dtype != torch.float32 and tensor.dtype != torch.float64:
        tensor = tensor.float()
    found: Array = tensor.numpy(force=True)
    return found
