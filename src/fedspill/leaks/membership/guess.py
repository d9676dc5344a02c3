"""Membership: what is said of each target: whether a client trained on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from fedspill.guess import Guess, check_scores
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class Membership(Guess):
    """Whether a client trained on each target that was looked for; the higher the score, the more likely it did."""

    of: Sequence[Origin]
    scores: Tensor  # (targets,)
    places: Tensor  # (targets,) int64
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        check_scores(self.of, self.scores, self.places)
