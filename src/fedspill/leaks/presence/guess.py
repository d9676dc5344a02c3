"""Presence: what Class Sniffing says of each round."""

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
class Presence(Guess):
    """Whether any other client of a round owns a class: present (origins, classes) bool, one origin per round's sum.

    `me` is the guessing client, whose own part was taken out.
    """

    of: Sequence[Origin]
    present: Tensor
    me: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if self.present.dtype != torch.bool or self.present.ndim != 2 or len(self.present) != len(self.of):
            raise AttackFailed(f"Expected yes or no of shape ({len(self.of)}, classes), got {self.present.shape}.")
