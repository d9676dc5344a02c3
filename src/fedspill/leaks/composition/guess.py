"""Proportions: what a composition attack says of each client."""

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
class Proportions(Guess):
    """Which share of each origin's data each class has: shares (origins, classes), rows that add up to 1.

    `null` marks the classes that the attack says are absent. `agreement` is the cosine between what was
    observed and what the guess explains; where it is too small the attack does not answer, and nothing is scored.
    """

    of: Sequence[Origin]
    shares: Tensor
    null: Tensor  # (origins, classes) bool
    agreement: Tensor  # (origins,) from 0 to 1
    answered: Tensor  # (origins,) bool
    notes: Sequence[str] = field(default_factory=tuple)
    unexplained: Tensor | None = None  # (origins,) the share of this origin's own message that the guess leaves open

    def check(self) -> None:
        check_table(self.shares, self.of, "shares")
        if bool((self.shares < 0).any()) or bool(((self.shares.sum(1) - 1).abs() > 1e-6).any()):
            raise AttackFailed("Expected shares that are not negative and add up to 1.")
        if self.null.dtype != torch.bool or self.null.shape != self.shares.shape:
            raise AttackFailed("Expected a mark for each share whether the class is absent.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
        if self.agreement.shape != (len(self.of),) or not bool(torch.isfinite(self.agreement).all()):
            raise AttackFailed("Expected a finite agreement for each origin.")
