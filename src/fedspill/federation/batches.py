"""Batch plans of a vertical federation: which samples the server asks for in which round (paper 001, CAFE).

An honest server draws at random or goes through the data epoch by epoch. A curious one may choose: `anti_twins` lets no
two samples share all their batches, so that few rounds tell them apart; `circulant` makes the system of all rounds
square and well conditioned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.errors import UsageError

Batching: TypeAlias = Literal["random", "epochs", "anti-twins", "circulant"]


def plan_batches(how: Batching, samples: int, size: int, rounds: int, rng: torch.Generator) -> list[Tensor]:
    """The sample indices of each round, each (at most size,) and sorted."""
    if not 1 <= size <= samples:
        raise UsageError(f"A batch of {size} cannot be drawn from {samples} samples.", remedy="Lower the batch size.")
    if how == "circulant":
        if rounds != samples:
            raise UsageError(
                f"A circulant plan has as many rounds as samples: expected {samples} rounds, got {rounds}."
            )
        return circulant(samples, size, rng)
    batches: list[Tensor] = []
    cells = torch.zeros(samples, dtype=torch.int64)  # samples with equal numbers were in the same batches so far
    while len(batches) < rounds:
        if how == "random":
            batches.append(torch.randperm(samples, generator=rng)[:size])
        elif how == "epochs":
            batches += torch.split(torch.randperm(samples, generator=rng), size)
        else:
            epoch = _deal_out(cells, -(-samples // size), rng)
            batches += [(epoch == number).nonzero().flatten() for number in range(int(epoch.max()) + 1)]
            cells = torch.unique(cells * (int(epoch.max()) + 1) + epoch, return_inverse=True)[1]
    return [batch.sort().values for batch in batches[:rounds]]


def _deal_out(cells: Tensor, batches_per_epoch: int, rng: torch.Generator) -> Tensor:
    """(samples,) the batch of each sample in one epoch; samples of one cell go to different batches.

    Cells and their members are dealt in random order; a fixed order would make the epochs depend on each other.
    """
    rank = torch.randperm(int(cells.max()) + 1, generator=rng)[cells]
    shuffled = torch.randperm(len(cells), generator=rng)
    order = shuffled[rank[shuffled].argsort(stable=True)]
    epoch = torch.empty_like(cells)
    epoch[order] = torch.arange(len(cells)) % batches_per_epoch
    return epoch


def circulant(samples: int, size: int, rng: torch.Generator, *, draws: int = 100, swaps: int = 1000) -> list[Tensor]:
    """Round t asks for D + t: a set D whose Fourier transform stays far from zero, found by drawing and swapping."""

    def flatness(chosen: Tensor) -> float:
        mask = torch.zeros(samples, dtype=torch.float64)
        mask[chosen] = 1
        return float(torch.fft.rfft(mask).abs().min())

    candidates = [torch.randperm(samples, generator=rng)[:size] for _ in range(draws)]
    best = max(candidates, key=flatness)
    score = flatness(best)
    for _ in range(swaps if size < samples else 0):
        place, other = (int(torch.randint(limit, (1,), generator=rng)) for limit in (size, samples))
        if bool((best == other).any()):
            continue
        changed = best.clone()
        changed[place] = other
        if flatness(changed) > score:
            best, score = changed, flatness(changed)
    return [((best + shift) % samples).sort().values for shift in range(samples)]


def membership(batches: Sequence[Tensor], samples: int) -> Tensor:
    """(rounds, samples) 1 where the round used the sample, else 0, float64."""
    used = torch.zeros(len(batches), samples, dtype=torch.float64)
    for row, batch in enumerate(batches):
        used[row, batch] = 1
    return used


def twins(batches: Sequence[Tensor], samples: int) -> list[tuple[int, ...]]:
    """Groups of samples that share all their batches, those that were never asked for included."""
    columns = membership(batches, samples).T.to(torch.bool)
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, column in enumerate(columns):
        groups[column.numpy().tobytes()].append(index)
    return [tuple(group) for group in groups.values() if len(group) > 1]
