"""SampleLabels: what a party says of the label of each sample that it holds features of."""

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
class SampleLabels(Guess):
    """For each sample a score for every class; the highest is the label that is said.

    An origin is a round, and a sample belongs to the first round that is seen to use it. Samples whose label the party
    was given are left out.
    """

    of: Sequence[Origin]
    places: Sequence[Tensor]  # of each round (samples,) int64: which samples of its batch
    scores: Sequence[Tensor]  # of each round (samples, classes)
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if not len(self.of) == len(self.places) == len(self.scores):
            raise AttackFailed(f"Expected places and scores for each of {len(self.of)} rounds.")
        for places, scores in zip(self.places, self.scores, strict=True):
            if places.ndim != 1 or scores.ndim != 2 or len(places) != len(scores) or scores.shape[1] < 2:
                raise AttackFailed(
                    f"Expected scores of shape (samples, classes) beside places of shape (samples,), "
                    f"got {tuple(scores.shape)} and {tuple(places.shape)}."
                )
            if not bool(torch.isfinite(scores).all()) or (len(places) and int(places.min()) < 0):
                raise AttackFailed("Expected finite scores, and places from 0 up.")
