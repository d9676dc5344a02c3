"""Membership: what is said of each record: whether a client trained on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess, check_scores
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class Membership(Guess):
    """Whether a client trained on each record; the higher the score, the more likely it did.

    A malicious server looks for targets, one round each. A passive adversary asks about records: every record is asked
    of every client that it sees, or of the sum, and `labels` says what the records' labels are.
    """

    of: Sequence[Origin]
    scores: Tensor  # (answers,)
    places: Tensor  # (answers,) int64: which target of its round, or which of the records asked about
    notes: Sequence[str] = field(default_factory=tuple)
    labels: Tensor | None = None  # (answers,) int64; None: targets of a malicious server

    def check(self) -> None:
        check_scores(self.of, self.scores, self.places)
        if self.labels is not None and self.labels.shape != self.scores.shape:
            raise AttackFailed("Expected a label for each answer.")
