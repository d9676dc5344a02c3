"""Groups: what Whole Determination says of the federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess, check_table
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class Groups(Guess):
    """Which classes of the whole federation have about equally many samples: group (origins, classes), 0 the largest.

    `amount` is what the classes were ordered by, largest first; `answered` is false where the attack cannot tell.
    """

    of: Sequence[Origin]
    group: Tensor
    amount: Tensor
    answered: Tensor
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        check_table(self.amount, self.of, "amounts")
        if self.group.dtype != torch.int64 or self.group.shape != self.amount.shape:
            raise AttackFailed("Expected a group number for each class.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
