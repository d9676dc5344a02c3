"""LLBG: labels from the last bias gradient of an untrained model, impact known (paper 003, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.labels.greedy import greedy_counts
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.observe.last_layer import LABEL_NEEDS, LastLayerGradients, read_last_layer
from fedspill.reads import HEAD_OF_UPDATES
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LLBG(Attack):
    """Algorithm 1, for untrained models: each sample moves its class by one over the samples of a local step."""

    name: ClassVar[str] = "llbg"
    title: ClassVar[str] = "Label counts from the last bias gradient"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    reads = HEAD_OF_UPDATES
    leak = LABELS

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return llbg_guess(layer, torch.zeros(len(layer.of), layer.classes), self.name)


def llbg_guess(layer: LastLayerGradients, confidence: Tensor, attack: str) -> LabelCounts:
    per_step = torch.tensor([schedule.per_step for schedule in layer.schedules])
    counts = llbg_counts(layer.require_bias(attack), per_step, layer.samples, confidence)
    return LabelCounts(layer.of, counts, layer.notes)


def llbg_counts(bias: Tensor, per_step: Tensor, samples: Tensor, confidence: Tensor) -> Tensor:
    """Counts (batches, classes); bias and confidence (batches, classes), per_step and samples (batches,).

    The paper's B in m = -1/B is the number of samples in one local step, since the update sums step gradients.
    """
    return greedy_counts(bias, -(1 - confidence) / per_step[:, None], samples)
