"""The sum that a server forms of its clients' updates, at once or as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from fedspill.training import Tensors


@torch.no_grad()
def weighted_sum(updates: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """The sum of weight times update; the updates stay as they are."""
    total = {name: tensor * weights[0] for name, tensor in updates[0].items()}
    for update, weight in zip(updates[1:], weights[1:], strict=True):
        torch._foreach_add_(list(total.values()), [update[name] for name in total], alpha=weight)
    return total


@final
class RunningMean:
    """The weighted mean of updates that come one by one and are not kept: memory does not grow with the clients.

    If all come with the shares that were expected, it is `weighted_sum` to the last bit.
    """

    def __init__(self, expected: float) -> None:
        """expected: the sum of all shares, were everybody to answer as agreed."""
        self._sum = expected  # that the updates so far were divided by
        self._came = 0.0
        self._total: Tensors = {}

    @torch.no_grad()
    def add(self, update: Mapping[str, Tensor], share: float, expected: float) -> None:
        """An update, the share that it claims, and the one that was expected of it."""
        if share != expected:  # before it is added, so that no claim makes the sum overflow
            self._rescale(self._sum + share - expected)
        self._came += share
        if not self._total:
            self._total = {name: tensor * (share / self._sum) for name, tensor in update.items()}
        else:
            names = list(self._total)
            torch._foreach_add_(list(self._total.values()), [update[name] for name in names], alpha=share / self._sum)

    def mean(self) -> Tensors:
        """Of those that came."""
        if self._came != self._sum:
            self._rescale(self._came)
        return self._total

    @torch.no_grad()
    def _rescale(self, new: float) -> None:
        if self._total:
            torch._foreach_mul_(list(self._total.values()), self._sum / new)
        self._sum = new
