"""The greedy reading of a last-layer gradient that LLG, EBI and LLBG share, in closed form, many batches at once.

The published loop repeats "take the smallest coordinate, count one label for it, raise it by one sample's impact" until
the batch is full. Raising the smallest coordinate again and again fills a vessel to a level, so the counts follow from
the level, and the few samples that the level leaves over go to the lowest coordinates, each at most once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def greedy_counts(gradient: Tensor, impact: Tensor, samples: Tensor) -> Tensor:
    """Label counts (batches, classes) that the published loop finds.

    gradient (batches, classes); impact (batches, classes), what one sample adds: negative; samples (batches,)
    Coordinates below zero count once first ("guaranteed labels"), the most negative first if they are too many.
    """
    rise = -impact
    order = gradient.argsort(dim=1, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order).contiguous())
    guaranteed = (gradient < 0) & (rank < samples[:, None])
    height = gradient + rise * guaranteed
    left = samples - guaranteed.sum(1)
    counts = guaranteed.long() + _poured(height, rise, left)
    # A gradient without a negative coordinate gives LLG and EBI no impact at all: the loop then repeats its argmin.
    stuck = (rise <= 0).all(1)
    if bool(stuck.any()):
        lowest = torch.nn.functional.one_hot(height.argmin(1), height.shape[1]) * left[:, None]
        counts = torch.where(stuck[:, None], guaranteed.long() + lowest, counts)
    return counts


def _poured(height: Tensor, rise: Tensor, left: Tensor) -> Tensor:
    """How often each coordinate is raised while `left` raises go to the currently lowest, one by one."""
    rise = rise.clamp_min(torch.finfo(rise.dtype).tiny)
    level = _level(height, rise, left)
    times = ((level[:, None] - height) / rise).floor().clamp_min(0).long()
    # Rounding may pour one too many; what is too much goes back before the rest is given out.
    reached = height + times * rise
    over = (times > 0) & (reached > level[:, None] + 1e-12)
    times = times - over.long()
    reached = height + times * rise
    remaining = left - times.sum(1)
    order = reached.argsort(dim=1, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order).contiguous())
    return times + (rank < remaining[:, None]).long()


def _level(height: Tensor, rise: Tensor, left: Tensor) -> Tensor:
    """The level (batches,) at which the continuous pouring of `left` raises stops."""
    sorted_height, order = height.sort(dim=1)
    speed = (1.0 / rise).gather(1, order)  # raises per unit of level
    total_speed = speed.cumsum(1)
    # With the k lowest coordinates in play: left = level * total_speed - sum(height * speed).
    levels = (left[:, None] + (sorted_height * speed).cumsum(1)) / total_speed
    # The right k is the last whose own height still lies below its level.
    inside = levels >= sorted_height
    last = inside.long().cumsum(1).argmax(1)
    return levels.gather(1, last[:, None]).squeeze(1)
