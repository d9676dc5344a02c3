"""How widely the gradients of a sample spread over its uses, which noise that depends on the class gives away."""

from __future__ import annotations

import torch
from torch import Tensor


def spread_scores(visits: Tensor) -> Tensor:
    """(samples, 2) scores from visits (visits, samples, width) of two classes.

    The mean square of a sample's gradients over its uses, along the direction in which all gradients differ most and
    across it, each against what is usual in its use. Samples fall into two heaps along the direction in which these two
    logarithms vary most; the cut is where the heaps' means are equally near.
    """
    along, across = [], []
    for rows in visits:
        _, vectors = torch.linalg.eigh(rows.T @ rows)
        main = (rows @ vectors[:, -1]).square()
        rest = (rows.square().sum(1) - main).clamp_min(0)
        along.append(main / main.median().clamp_min(1e-300))
        across.append(rest / rest.median().clamp_min(1e-300))
    both = torch.stack([torch.stack(part).mean(0).clamp_min(1e-12).log() for part in (along, across)], 1)
    both = both - both.mean(0)
    both = both / both.std(0).clamp_min(1e-12)
    _, vectors = torch.linalg.eigh(both.T @ both)
    value = both @ vectors[:, -1]
    cut = _between_heaps(value)
    return torch.stack([cut - value, value - cut], 1)


def _between_heaps(value: Tensor) -> float:
    """Where two heaps of numbers (n,) part: halfway between their means, from the median on."""
    cut = float(value.median())
    for _ in range(50):
        above = value > cut
        if not bool(above.any()) or bool(above.all()):
            return cut
        moved = float(value[above].mean() + value[~above].mean()) / 2
        if abs(moved - cut) < 1e-9:
            return moved
        cut = moved
    return cut
