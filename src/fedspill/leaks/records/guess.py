"""Records: what an attack says of the rows of a table that each message was made of."""

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
class Records(Guess):
    """For each origin a stack of encoded records (count, columns), in no particular order.

    `certified` marks the records of which the attack vouches for every field, by something it observed. `answered` is
    false where the attack gives nothing.
    """

    of: Sequence[Origin]
    rows: Sequence[Tensor]
    certified: Sequence[Tensor]  # per origin (count,) bool
    answered: Tensor  # (origins,) bool
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if not len(self.rows) == len(self.certified) == len(self.of):
            raise AttackFailed(f"Expected records and certificates for {len(self.of)} origins.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
        for rows, certified in zip(self.rows, self.certified, strict=True):
            if rows.ndim != 2 or certified.dtype != torch.bool or certified.shape != rows.shape[:1]:
                raise AttackFailed("Expected a row for each record, and a mark whether it is certified.")
            if not bool(torch.isfinite(rows).all()):
                raise AttackFailed("Expected finite records.")
