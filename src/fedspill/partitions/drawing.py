"""Draws examples by class: how many there are, whether they suffice, and which of them each client gets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples, UsageError


def class_counts(examples: Examples, at_least: int = 0) -> Tensor:
    """(classes,) The examples of each class, from class 0 to the largest label, or to `at_least` classes."""
    return torch.bincount(examples.y.cpu(), minlength=at_least)


def at_least(what: str, least: int, **options: int | None) -> None:
    """Refuses an option below `least`; None stands for an option that was not given."""
    for option, value in options.items():
        if value is not None and value < least:
            raise UsageError(f"Partition {what!r}: {option} must be at least {least}, got {value}.")


def require(wanted: Tensor, available: Tensor, what: str, remedy: str, *, reuse: bool = False) -> None:
    """Refuses when a class has fewer examples than wanted, both (classes,), or, with `reuse`, none; lists all such."""
    short = torch.nonzero((wanted > available) & ((available == 0) | (not reuse))).flatten().tolist()
    if short:
        listed = "; ".join(f"class {c}: wanted {int(wanted[c])}, available {int(available[c])}" for c in short)
        raise NotEnoughExamples(f"{what} lacks examples. {listed}.", remedy=remedy)


def draw(examples: Examples, counts: Tensor, rng: torch.Generator, *, reuse: bool = False) -> list[Tensor]:
    """For each row of counts (clients, classes) the indices of that many random examples of each class, shuffled.

    No example is drawn twice, unless `reuse`: then a class that is used up starts over from its first example.
    """
    available = class_counts(examples, counts.shape[1])
    assert torch.all(counts.sum(0) <= available) or (reuse and available[counts.sum(0) > 0].all())
    order = torch.randperm(len(examples), generator=rng)
    order = order[torch.argsort(examples.y.cpu()[order], stable=True)]  # class by class, random within each
    first = available.cumsum(0) - available  # where a class begins in `order`
    given = counts.cumsum(0) - counts  # what earlier clients took of it
    shares = []
    for row, before in zip(counts, given, strict=True):
        label = torch.repeat_interleave(row)
        rank = torch.arange(len(label)) - (row.cumsum(0) - row)[label]  # within the client's examples of that class
        share = order[first[label] + (before[label] + rank) % available[label]]
        shares.append(share[torch.randperm(len(share), generator=rng)])
    return shares


def draw_batches(
    examples: Examples, counts: Tensor, rng: torch.Generator, what: str, remedy: str, *, disjoint: bool, reuse: bool
) -> list[Tensor]:
    """`draw`, checked, where every client draws from all examples, so that two may hold the same, unless `disjoint`."""
    wanted = counts.sum(0) if disjoint else counts.amax(0)
    require(wanted, class_counts(examples), what, remedy, reuse=reuse)
    if disjoint:
        return draw(examples, counts, rng, reuse=reuse)
    return [draw(examples, row[None], rng, reuse=reuse)[0] for row in counts]


def uniform_counts(sizes: Tensor, available: Tensor, rng: torch.Generator) -> Tensor:
    """(clients, classes) Counts of sizes (clients,) i.i.d. labels, uniform over the classes that have examples."""
    present = torch.nonzero(available).flatten()
    labels = present[torch.randint(len(present), (int(sizes.sum()),), generator=rng)]
    cells = torch.repeat_interleave(sizes) * len(available) + labels
    return torch.bincount(cells, minlength=len(sizes) * len(available)).reshape(len(sizes), len(available))


def numpy_generator(rng: torch.Generator) -> np.random.Generator:
    """A numpy generator seeded from `rng`, for laws that torch cannot sample from a given generator."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, (), generator=rng)))
