"""LabelCounts: what a label attack says of each message."""

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
class LabelCounts(Guess):
    """How many samples of each class each origin trained on: counts (origins, classes), whole and not negative."""

    of: Sequence[Origin]
    counts: Tensor
    notes: Sequence[str] = field(default_factory=tuple)
    confidence: Tensor | None = None  # (origins,) the share of labels that the attack expects to have right
    sure: Tensor | None = None  # (origins, classes) probability that a class's count is exact
    routes: tuple[str, ...] = ()  # how each origin was read
    low: Tensor | None = None  # (origins, classes) a class's count lies between these in nine cases of ten
    high: Tensor | None = None

    def check(self) -> None:
        if self.counts.ndim != 2 or len(self.counts) != len(self.of):
            raise AttackFailed(f"Expected counts of shape ({len(self.of)}, classes), got {tuple(self.counts.shape)}.")
        if self.counts.dtype != torch.int64 or bool((self.counts < 0).any()):
            raise AttackFailed("Expected whole, non-negative label counts.")
        for stated, shape in ((self.confidence, self.counts.shape[:1]), (self.sure, self.counts.shape)):
            if stated is not None and (stated.shape != shape or not bool(((stated >= 0) & (stated <= 1)).all())):
                raise AttackFailed(f"Expected probabilities of shape {tuple(shape)} as confidence.")
        for bound in (self.low, self.high):
            if bound is not None and (bound.shape != self.counts.shape or bool((bound < 0).any())):
                raise AttackFailed(f"Expected bounds of shape {tuple(self.counts.shape)}, none negative.")
