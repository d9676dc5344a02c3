"""Norm attack: of two classes, the rarer one has the longer gradients (Li et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.gradients import known_or_none, read_received, require_two_classes
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class GradientNorm(Attack):
    """Scores a sample by the length of its gradient, as a model is less sure of what is rare.

    The paper gives the area under the ROC curve of this score, round by round. Where a label must be said, the share of
    samples that the rarer class has is said to be of it. `use` is which use of the samples is read.
    """

    name: ClassVar[str] = "gradient-norm"
    title: ClassVar[str] = "Labels by the length of gradients"
    paper: ClassVar[str] = "Li et al. 2021, Label Leakage and Protection in Two-party Split Learning"
    needs = needs(sees=["returned", "batch"], knows=["class_prior"])
    leak = SAMPLE_LABELS
    control: ClassVar[Mapping[str, Any]] = {
        **SAMPLE_LABELS.control,
        "data": {"name": "made-up-people", "people": 1000, "yes_share": 0.15},
    }

    use: int = 1  # by the second the model knows which class is rare

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        received = read_received(view)
        require_two_classes(received, self.name)
        prior = view.knows("class_prior")
        rarer = int(prior.argmin())
        use = min(max(self.use, 0), len(received.visits) - 1)
        length = received.visits[use].norm(dim=1)
        cut = torch.quantile(length, 1 - float(prior[rarer]))
        scores = torch.zeros(received.samples, 2, dtype=torch.float64)
        scores[:, rarer] = length - cut
        return received.guess(scores, known_or_none(view, received).samples, f"use {use} of each sample")
