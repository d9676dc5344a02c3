"""Shares examples out to train and test where the data set has no split of its own; the same one every time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.errors import UsageError

Indices = NDArray[np.int64]


def split(labels: NDArray[Any], test_share: float, *, together: NDArray[Any] | None = None) -> tuple[Indices, Indices]:
    """Indices (train, test), in order: `test_share` of every class; examples with equal `together` on one side."""
    if not 0 <= test_share < 1:
        raise UsageError(f"test_share must be at least 0 and below 1, got {test_share}.")
    rng = np.random.default_rng(0)
    groups = np.arange(len(labels)) if together is None else together
    chosen = []
    for label in np.unique(labels):
        of_class = groups[labels == label]
        members, counts = np.unique(of_class, return_counts=True)
        order = rng.permutation(len(members))
        within = np.cumsum(counts[order]) <= round(test_share * len(of_class))
        chosen.append(members[order][within])
    is_test = np.isin(groups, np.concatenate(chosen)) if chosen else np.zeros(0, dtype=bool)
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def part_note(got: int, full: int, what: str = "images") -> str:
    """What a reader must know when only a part of the original is there."""
    return "" if got == full else f"Only {got:,} of the original {full:,} {what} are here."
