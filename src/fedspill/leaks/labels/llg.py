"""LLG: label leakage from the last layer's weight gradient (Wainakh et al.; the baseline of paper 003)."""

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
class LLG(Attack):
    """Sums the weight gradient over features; the negative sums, slightly enlarged, set one sample's impact.

    Sound for non-negative features only (ReLU, sigmoid): with tanh or GELU the signs mean nothing. When more classes
    are negative than there are samples, the most negative come first, as the paper does for its transformer.
    """

    name: ClassVar[str] = "llg"
    title: ClassVar[str] = "Label counts from the last weight gradient"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    reads = HEAD_OF_UPDATES
    leak = LABELS

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return LabelCounts(layer.of, llg_counts(layer.weight_sums, layer.samples), layer.notes)


def llg_counts(weight_sums: Tensor, samples: Tensor) -> Tensor:
    """Counts (batches, classes) from feature sums of the weight gradient (batches, classes) and sizes (batches,)."""
    negative = weight_sums.clamp_max(0).sum(1)
    impact = negative * (1 + 1 / weight_sums.shape[1]) / samples
    return greedy_counts(weight_sums, impact[:, None].expand_as(weight_sums), samples)
