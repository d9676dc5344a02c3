"""The greedy reading of a last-layer gradient that LLG, EBI and LLBG share, in closed form, many batches at once.

The published loop repeats "take the smallest coordinate, count one label for it, raise it by one sample's impact" until
the batch is full. Raising the smallest coordinate again and again fills a vessel to a level, so the counts follow from
the level, and the few samples that the level leaves over go to the lowest coordinates, each at most once. Where impacts
differ between classes, a few counts are then exchanged until none that was taken lies above one that was not.

In numpy, since at this size its sort is many times faster than torch's (benchmarks/label_decoding.py).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspill.errors import NotApplicable

Array: TypeAlias = NDArray[np.float64]

_ROUNDING = 1e-9  # of one raise: far above the rounding of float64, far below a real difference


def greedy_counts(gradient: Tensor, impact: Tensor, samples: Tensor) -> Tensor:
    """Label counts (batches, classes) that the published loop finds.

    gradient (batches, classes); impact (batches, classes), what one sample adds: negative; samples (batches,)
    Coordinates below zero count once first ("guaranteed labels"), the most negative first if they are too many.
    """
    height, rise, left = (tensor.detach().cpu().double().numpy() for tensor in (gradient, -impact, samples))
    if not (np.isfinite(height).all() and np.isfinite(rise).all()):
        raise NotApplicable("A last-layer gradient holds NaN or infinite values: no labels can be read from it.")
    guaranteed = height < 0
    if (guaranteed.sum(1) > left).any():
        guaranteed &= _lowest(height, left)
    height = height + rise * guaranteed
    left = left - guaranteed.sum(1)
    # A gradient without a negative coordinate gives LLG and EBI no impact at all: the loop then repeats its argmin.
    stuck = rise.max(1) <= 0
    poured = np.empty_like(height)
    poured[stuck] = _lowest(height[stuck], np.ones(stuck.sum())) * left[stuck, None]
    poured[~stuck] = _poured(height[~stuck], rise[~stuck], left[~stuck])
    return torch.from_numpy(guaranteed + poured.astype(np.int64)).to(gradient.device)


def _poured(height: Array, rise: Array, left: Array) -> Array:
    """How often each coordinate is raised while `left` raises go to the currently lowest, one by one."""
    height = height - height.min(1, keepdims=True)  # so that rounding is small against one raise
    rise = np.maximum(rise, 1e-12 * rise.max(1, keepdims=True))  # a class whose samples move nothing takes all: almost
    level = _level(height, rise, left)
    times = np.floor((level[:, None] - height) / rise - _ROUNDING).clip(0)
    times += _lowest(height + times * rise, left - times.sum(1))
    return _exchanged(times, height, rise)


def _level(height: Array, rise: Array, left: Array) -> Array:
    """The level (batches,) at which the continuous pouring of `left` raises stops; the lowest height is 0.

    With all coordinates in play the level is too high; without those above it, it falls, until none is above.
    """
    speed = 1 / rise  # raises per unit of level
    while True:
        # What is in play satisfies left = level * sum(speed) - sum(height * speed).
        level: Array = np.maximum((left + (height * speed).sum(1)) / speed.sum(1), 0)
        above = (speed > 0) & (height > level[:, None])
        if not above.any():
            return level
        speed[above] = 0


def _lowest(values: Array, many: Array) -> NDArray[np.bool_]:
    """Marks the `many` (batches,) lowest of each row, the first ones where values are equal."""
    index = (many.astype(np.int64) - 1).clip(0, values.shape[1] - 1)
    highest = np.sort(values, axis=1)[np.arange(len(values)), index]
    marked: NDArray[np.bool_] = values <= highest[:, None]
    if (marked.sum(1) > many).any():  # some equal the highest, or none is wanted
        below = values < highest[:, None]
        equal = marked & ~below
        marked = below | (equal & (equal.cumsum(1) <= (many - below.sum(1))[:, None]))
    return marked


def _exchanged(times: Array, height: Array, rise: Array) -> Array:
    """Moves raises, one per batch and turn, from where they were taken too high to where they were left too low.

    At equal heights the loop takes the first class, so a raise also moves to an earlier class of the same height.
    """
    rows = np.arange(len(times))
    slack = _ROUNDING * rise.max(1)
    while True:
        reached = height + times * rise
        last = np.where(times > 0, reached - rise, -np.inf)
        giver, taker = times.shape[1] - 1 - last[:, ::-1].argmax(1), reached.argmin(1)
        taken, left_out = last[rows, giver], reached[rows, taker]
        wrong = (taken > left_out + slack) | ((taken == left_out) & (taker < giver))
        if not wrong.any():
            return times
        times[rows[wrong], giver[wrong]] -= 1
        times[rows[wrong], taker[wrong]] += 1
