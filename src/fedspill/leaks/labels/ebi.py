"""EBI: labels from the last bias gradient, one sample's impact estimated from the gradient (paper 003, Eq. 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.labels.greedy import greedy_counts
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.observe.last_layer import LABEL_NEEDS, read_last_layer
from fedspill.reads import HEAD_OF_UPDATES
from fedspill.trace import View


@final
@dataclass(frozen=True)
class EBI(Attack):
    """Like LLBG, but the impact is the mean of what is negative, so that an unknown scale does not matter."""

    name: ClassVar[str] = "ebi"
    title: ClassVar[str] = "Label counts from the last bias gradient, impact estimated"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    reads = HEAD_OF_UPDATES
    leak = LABELS

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return LabelCounts(layer.of, ebi_counts(layer.require_bias(self.name), layer.samples), layer.notes)


def ebi_counts(bias: Tensor, samples: Tensor) -> Tensor:
    """Counts (batches, classes) from bias gradients (batches, classes) and batch sizes (batches,)."""
    impact = bias.clamp_max(0).sum(1) / samples
    return greedy_counts(bias, impact[:, None].expand_as(bias), samples)
