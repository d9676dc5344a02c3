"""Attributes: what is said of a hidden attribute of each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from fedspill.guess import Guess, check_scores
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class Attributes(Guess):
    """A yes-or-no attribute of each target that was looked for: one origin, the sum of its round, per target.

    `scores` are higher the more likely the attribute is 1; `prior` is the probability of that which the adversary's own
    data give without any access (imputation); `places` say which of its round's targets it is.
    """

    of: Sequence[Origin]
    scores: Tensor  # (targets,)
    prior: Tensor  # (targets,)
    places: Tensor  # (targets,) int64
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        check_scores(self.of, self.scores, self.prior, self.places)
