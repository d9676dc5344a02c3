"""How much of a batch could be taken out of a layer's sums, one sample after the other, whatever the plant is called.

How much that is falls from all to nothing within a narrow range of batch sizes, as connections in a random graph do, so
that a single batch says little: an honest model gives one away whole, and another of the same size not at all. What is
looked at is therefore the mean over many batches of a client's own samples, each of them a part of these.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Sets: TypeAlias = NDArray[np.uint64]  # of at most 64 samples each, one bit for each sample

SIZES = (8, 16, 24, 32, 40, 48)  # of batches that are tried
DRAWS = 8  # batches of each size
_LARGEST = 0.75  # of a client's samples: larger batches are nearly all the same one
_PART = 1e-3  # of the largest: a smaller part of a unit's sum is rounding


def readable_shares(signals: Tensor, left_over: Tensor) -> tuple[float, ...]:
    """(SIZES,) the share of samples that could be taken out one after the other, each when it is the last in some unit,
    or in the difference of two: what a server could read at most by such readings (planting/peel.py).

    signals (samples, units) is what at most 64 samples send back, left_over (samples, units) the difference to another
    unit. Of sizes for which there are too few samples nothing is said (NaN).
    """
    sums = torch.cat([signals, left_over.to(signals)], 1).abs()
    inside = (sums > _PART * sums.amax(0)).numpy(force=True)
    sizes = [size for size in SIZES if size <= _LARGEST * len(inside)]
    left = _count(_left(_sets(inside.T), _batches(len(inside), len(sizes))))
    shares = 1 - left.reshape(len(sizes), DRAWS).mean(1) / np.array(sizes)
    return (*shares.tolist(), *(float("nan"),) * (len(SIZES) - len(sizes)))


@cache
def _batches(samples: int, sizes: int) -> Sets:
    """(sizes x DRAWS,) who is in which batch; the same batches for every model, so that models compare."""
    places = np.random.default_rng(samples).random((sizes * DRAWS, samples)).argsort(1).argsort(1)
    return _sets(places < np.repeat(SIZES[:sizes], DRAWS)[:, None])


def _sets(members: NDArray[np.bool_]) -> Sets:
    """(sets,) of members (sets, samples)."""
    bits = np.left_shift(np.uint64(1), np.arange(members.shape[1], dtype=np.uint64))
    found: Sets = np.where(members, bits, np.uint64(0)).sum(1, dtype=np.uint64)
    return found


def _count(sets: Sets) -> NDArray[Any]:
    """(sets,) how many samples each has."""
    found: NDArray[Any] = np.unpackbits(sets[:, None].view(np.uint8), axis=1).sum(1)
    return found


def _left(sums: Sets, waiting: Sets) -> Sets:
    """(batches,) who is left of each batch when nobody is the last one in any sum any more."""
    one = np.uint64(1)
    while True:
        parts = sums & waiting[:, None]
        last = np.where(parts & (parts - one) == 0, parts, np.uint64(0))
        taken = np.bitwise_or.reduce(last, axis=1)
        if not taken.any():
            return waiting
        waiting = waiting & ~taken
