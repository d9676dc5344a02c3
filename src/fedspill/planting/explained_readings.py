"""Readings that a few candidates explain: with these taken out, nothing is left.

A candidate for a sample comes from one reading, by one number. That a reading by another number, which it is part of,
is empty without it, or without it and one or two more candidates, hardly happens by chance: all features have to agree.
So it says what a network's word says that cannot be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import torch
from torch import Tensor

from fedspill.planting.lone_samples import LEFT, LoneSample
from fedspill.planting.readings import Readings

# Of what the weakest of them puts into a reading. What nearly fits may have a weak sample beside it, which would be
# taken out with it everywhere, so what fits better goes first.
_LEFT = (1e-3, LEFT)
_TOGETHER = 3  # candidates in one reading, of the best fitting _TRIED: of more, too many sums would have to be tried
_TRIED = 12


@torch.no_grad()
def explaining(able: Sequence[LoneSample], weight: Tensor, bias: Tensor, readings: Readings) -> list[LoneSample]:
    """Candidates that leave readings of the gradients weight (rows, features) and bias (rows,) empty.

    All that do so by themselves; where there are none, the first two, or three, that do so together.
    """
    if not able:
        return []
    sent = readings.of(torch.stack([one.sent for one in able]).T)  # (readings, n)
    part, others = readings.of(bias), torch.stack([one.others for one in able], 1)
    for most, size in product(_LEFT, range(1, _TOGETHER + 1)):
        found: dict[int, None] = {}
        for place in (others.sum(1) >= size).nonzero().flatten().tolist():
            own, read = sent[place].tolist(), float(part[place])
            for group in combinations(others[place].nonzero().flatten()[:_TRIED].tolist(), size):
                left = most * min(abs(own[i]) for i in group)
                if abs(read - sum(own[i] for i in group)) <= left and _is_all(
                    [able[i] for i in group], [own[i] for i in group], weight, readings, place, most
                ):
                    found |= dict.fromkeys(group)
                    if size > 1:
                        return [able[i] for i in group]
        if found:
            return [able[i] for i in sorted(found)]
    return []


def _is_all(
    group: list[LoneSample], own: list[float], weight: Tensor, readings: Readings, place: int, most: float
) -> bool:
    """Whether nothing but that group is in a reading, to which its members contribute `own`."""
    whole = readings.at(torch.tensor([place], device=weight.device)).of(weight)[0]
    for one, size in zip(group, own, strict=True):
        whole = whole - size * one.features
    least = min(abs(size) * float(one.features.square().mean().sqrt()) for one, size in zip(group, own, strict=True))
    return float(whole.square().mean().sqrt()) <= most * least
