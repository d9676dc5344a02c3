"""The reorderings of a text that LAMP tries: a swap, a token moved, a run of tokens moved, a beginning put last."""

from __future__ import annotations

import torch
from torch import Tensor


def reordered(length: int, rng: torch.Generator) -> Tensor:
    """(length,) a random one of them, as the old place of what stands in each new one."""
    order = torch.arange(length)
    if length < 2:
        return order
    first, second = sorted(torch.randperm(length, generator=rng)[:2].tolist())
    kind = int(torch.randint(4, (1,), generator=rng))
    if kind == 0:
        order[[first, second]] = order[[second, first]]
        return order
    if kind == 3:
        return order.roll(-second)
    run = order[first : first + 1] if kind == 1 else order[first : second + 1]
    rest = torch.cat([order[: int(run[0])], order[int(run[-1]) + 1 :]])
    place = int(torch.randint(len(rest) + 1, (1,), generator=rng))
    return torch.cat([rest[:place], run, rest[place:]])
