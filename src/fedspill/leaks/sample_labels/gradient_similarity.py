"""Similarity attack: a sample has the label of the known sample whose gradient is most like it (Liu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.gradients import read_known, read_received
from fedspill.leaks.sample_labels.received.nearest_in_time import cosines
from fedspill.leaks.sample_labels.received.sample_rounds import require_every_class
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class GradientSimilarity(Attack):
    """Cosine with one known sample of each class or more; the nearest names the label. `use` is which use is read."""

    name: ClassVar[str] = "gradient-similarity"
    title: ClassVar[str] = "Labels by similarity to known gradients"
    paper: ClassVar[str] = "Liu et al. 2022, Similarity-based Label Inference Attack against Split Learning"
    needs = needs(sees=["returned", "batch"], knows=["few_labels"])
    leak = SAMPLE_LABELS

    use: int = 0

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        received = read_received(view)
        known = read_known(view, received)
        require_every_class(known, received.classes, self.name)
        use = min(max(self.use, 0), len(received.visits) - 1)
        cosine = cosines(received, use, known.samples)
        best = [cosine[:, known.labels == label].max(1).values for label in range(received.classes)]
        return received.guess(torch.stack(best, 1), known.samples, f"use {use} of each sample")
