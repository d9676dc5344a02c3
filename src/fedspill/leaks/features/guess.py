"""FeatureRows: what the party with the labels says of the features that another party holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class FeatureRows(Guess):
    """One party's features, row by row; an origin is a round of predictions. Rows that were given are left out."""

    of: Sequence[Origin]
    places: Sequence[Tensor]  # of each round (samples,) int64: which samples of its batch
    rows: Sequence[Tensor]  # of each round (samples, features)
    certified: Sequence[Tensor]  # of each round (samples,) bool: no other row explains what was seen
    columns: Sequence[int]  # which entries of a whole sample, read as one line, the features are
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        # Texts, where it comes from another process.
        object.__setattr__(self, "columns", tuple(int(column) for column in self.columns))

    def check(self) -> None:
        if not len(self.of) == len(self.places) == len(self.rows) == len(self.certified) or not self.columns:
            raise AttackFailed(
                f"Expected places, rows and certificates for each of {len(self.of)} rounds, and columns."
            )
        for places, rows, certified in zip(self.places, self.rows, self.certified, strict=True):
            shape = (len(places), len(self.columns))
            if places.ndim != 1 or rows.shape != shape or certified.shape != places.shape:
                raise AttackFailed(f"Expected rows of shape {shape}, got {tuple(rows.shape)}.")
            if certified.dtype != torch.bool or not bool(torch.isfinite(rows).all()):
                raise AttackFailed("Expected finite rows, and yes or no as certificates.")
            if len(places) and int(places.min()) < 0:
                raise AttackFailed("Expected places from 0 up.")
