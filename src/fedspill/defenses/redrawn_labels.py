"""Redrawn labels: the party with the labels trains on labels of which some were drawn at random, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError


@final
@dataclass(frozen=True)
class RedrawnLabels(Defense):
    """A share of the labels is drawn anew from all classes before training (randomised response).

    It is drawn once, so that no number of epochs averages it out: what a party reads is the label that was drawn.
    """

    name: ClassVar[str] = "redrawn-labels"
    title: ClassVar[str] = "Draw a share of the labels anew"
    paper: ClassVar[str] = "Warner 1965, randomised response"
    strengths = ({"share": 0.2}, {"share": 0.5})
    of_private_towers = True

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"share is from 0 to 1, got {self.share}.")

    def labels(self, labels: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        chosen = torch.rand(labels.shape, generator=rng) < self.share
        drawn = torch.randint(classes, labels.shape, generator=rng)
        return torch.where(chosen, drawn, labels)

    def effect(self) -> WireEffect:
        return WireEffect(labels_redrawn=self.share)
