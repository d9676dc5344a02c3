"""Guesses: what attacks hand over, one class per thing that can be guessed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.trace import Origin


class Guess(ABC):
    """A guess about each of its origins."""

    family: ClassVar[str]  # what leaks: "labels", ...
    headline: ClassVar[str]  # the metric that an audit ranks by

    of: Sequence[Origin]
    notes: Sequence[str]  # what the attack assumed and which route it took, for the report

    @abstractmethod
    def check(self) -> None:
        """Raises AttackFailed unless the guess is finite and of the right shape."""


@final
@dataclass(frozen=True, eq=False)
class LabelCounts(Guess):
    """How many samples of each class each origin trained on: counts (origins, classes), whole and not negative."""

    family: ClassVar[str] = "labels"
    headline: ClassVar[str] = "label-asr"

    of: Sequence[Origin]
    counts: Tensor
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if self.counts.ndim != 2 or len(self.counts) != len(self.of):
            raise AttackFailed(f"Expected counts of shape ({len(self.of)}, classes), got {tuple(self.counts.shape)}.")
        if self.counts.dtype != torch.int64 or bool((self.counts < 0).any()):
            raise AttackFailed("Expected whole, non-negative label counts.")
