"""The sum that a server forms of its clients' updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
