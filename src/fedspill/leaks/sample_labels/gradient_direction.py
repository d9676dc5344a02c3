"""Direction attack: gradients of one class point the same way, those of the other the opposite way (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.gradients import read_known, read_received, require_two_classes
from fedspill.leaks.sample_labels.received.nearest_in_time import cosines
from fedspill.leaks.sample_labels.received.sample_rounds import require_every_class
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class GradientDirection(Attack):
    """Scores a sample by the cosine of its gradient with that of one sample known to be of the second class.

    Above zero is the same class. `use` is which use of the samples is read.
    """

    name: ClassVar[str] = "gradient-direction"
    title: ClassVar[str] = "Labels by the direction of gradients"
    paper: ClassVar[str] = "Li et al. 2021, Label Leakage and Protection in Two-party Split Learning"
    needs = needs(sees=["returned", "batch"], knows=["few_labels"])
    leak = SAMPLE_LABELS

    use: int = 0

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        received = read_received(view)
        require_two_classes(received, self.name)
        known = read_known(view, received)
        require_every_class(known, 2, self.name)
        positive = known.samples[known.labels == 1][:1]
        use = min(max(self.use, 0), len(received.visits) - 1)
        cosine = cosines(received, use, positive)[:, 0]
        scores = torch.stack([-cosine, cosine], 1)
        return received.guess(scores, known.samples, f"use {use} of each sample")
