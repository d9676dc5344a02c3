"""One pass over a layer of two models: how far its units and inputs moved, and how large its units are now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray: TypeAlias = NDArray[np.floating[Any]]
_BLOCK = 1 << 15  # entries at a time: they stay in the processor's cache, and no copy of the model is made
_ONES = np.ones(_BLOCK, np.float32)  # sums are products with ones, which are faster
_ONES.setflags(write=False)


@final
class LayerChange(NamedTuple):
    """Sums of squares of a layer, ascending; NaN or infinite where its entries are, or where they are too large."""

    steps: FloatArray  # (units,) changes of each unit over all tensors; one number where tensors differ in units
    sizes: FloatArray  # (units,) the same of what they are now
    inputs: list[tuple[FloatArray, int]]  # of each matrix, changes (inputs,) by column, and entries; filters by channel
    entries: int


def layer_change(before: Sequence[Tensor], now: Sequence[Tensor]) -> LayerChange:
    """The tensors of one layer, then and now, of the same shapes."""
    parts = [_tensor(old, new) for old, new in zip(before, now, strict=True)]
    steps, sizes, columns, entries = parts[0]
    inputs = [] if columns is None else [(columns, entries)]
    for more, larger, columns, many in parts[1:]:
        if len(more) != len(steps):
            steps, sizes, more, larger = (part.sum(keepdims=True) for part in (steps, sizes, more, larger))
        steps, sizes, entries = steps + more, sizes + larger, entries + many
        if columns is not None:
            inputs.append((columns, many))
    steps.sort()
    sizes.sort()
    for columns, _ in inputs:
        columns.sort()
    return LayerChange(steps, sizes, inputs, entries)


def _tensor(before: Tensor, now: Tensor) -> tuple[FloatArray, FloatArray, FloatArray | None, int]:
    """Of one tensor: changes (units,), sizes (units,), changes (inputs,) where it is a matrix, and its entries."""
    old, new = _array(before), _array(now)
    if new.ndim == 2:
        return _matrix(old, new)
    if new.ndim < 2:
        if new.ndim == 0:
            old, new = old.reshape(1), new.reshape(1)
        change = new - old
        return change * change, new * new, None, new.size
    steps, sizes, columns, entries = _matrix(old.reshape(len(old), -1), new.reshape(len(new), -1))
    return steps, sizes, columns.reshape(new.shape[1], -1).sum(1), entries


def _matrix(old: FloatArray, new: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    units, width = new.shape
    height = max(_BLOCK // width, 1)
    if units <= height:
        return *_block(old, new), new.size
    blocks = [_block(old[i : i + height], new[i : i + height]) for i in range(0, units, height)]
    steps, sizes = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
    return steps, sizes, sum((block[2] for block in blocks[1:]), blocks[0][2]), new.size


def _block(old: FloatArray, new: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Squared changes by row, squared entries by row, squared changes by column."""
    squares = new - old
    squares *= squares
    height, width = squares.shape
    across = _ones(width, new)
    steps, columns = squares.dot(across), _ones(height, new).dot(squares)
    np.multiply(new, new, squares)
    return steps, squares.dot(across), columns


def _ones(many: int, like: FloatArray) -> FloatArray:
    return _ONES[:many] if many <= _BLOCK and like.dtype is _ONES.dtype else np.ones(many, like.dtype)


def _array(tensor: Tensor) -> FloatArray:
    if tensor.dtype is not torch.float32 and tensor.dtype is not torch.float64:
        tensor = tensor.float()
    found: FloatArray = tensor.numpy(force=True)
    return found
