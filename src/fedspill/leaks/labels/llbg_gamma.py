"""LLBG-gamma: LLBG for trained models, one confidence for all classes (paper 003, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import UsageError
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.leaks.labels.llbg import llbg_guess
from fedspill.observe.last_layer import LABEL_NEEDS, read_last_layer
from fedspill.reads import HEAD_OF_UPDATES
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LLBGGamma(Attack):
    """Algorithm 2, for trained models, with one constant as every class's mean confidence."""

    name: ClassVar[str] = "llbg-gamma"
    title: ClassVar[str] = "Label counts from the last bias gradient of a trained model, one confidence for all classes"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    reads = HEAD_OF_UPDATES
    leak = LABELS

    gamma: float = 0.7  # the best of the paper's three

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise UsageError(f"gamma is a mean confidence in [0, 1), got {self.gamma}.")

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return llbg_guess(layer, torch.full((len(layer.of), layer.classes), self.gamma), self.name)
