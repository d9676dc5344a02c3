"""Labels: our label-count attack, the mean probability measured where the adversary can and ragged batches decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attacks.base import Attack
from fedspill.attacks.decode import decode_counts
from fedspill.attacks.last_layer import LABEL_NEEDS, LastLayer, read_last_layer
from fedspill.attacks.llg import llg_counts
from fedspill.attacks.probe import models_before, probabilities
from fedspill.guesses import LabelCounts
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Labels(Attack):
    """Solves the bias equation for whole counts instead of peeling labels off greedily.

    Mean probability: from the model on unlabelled inputs where the adversary has both, else uniform, which holds while
    the model is untrained. Without a last bias the weight gradient is read as LLG does.
    """

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = "Label counts, best reading of the last layer"
    paper: ClassVar[str] = "fedspill"
    needs = LABEL_NEEDS
    guesses = LabelCounts

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        if layer.bias is None:
            return LabelCounts(layer.of, llg_counts(layer.weight_sums, layer.samples), ("no last bias: read as LLG",))
        if view.has("architecture") and view.has("unlabelled_aux") and view.sees("model"):
            return LabelCounts(layer.of, best_counts(layer, _measured(view, layer)), ("mean probability measured",))
        return LabelCounts(layer.of, best_counts(layer), ("mean probability taken as uniform",))


def best_counts(layer: LastLayer, mean_probability: Tensor | None = None) -> Tensor:
    """Counts (origins, classes); mean_probability (origins, classes), uniform when not given."""
    assert layer.bias is not None
    if mean_probability is None:
        mean_probability = torch.full_like(layer.bias, 1 / layer.classes)
    counts = torch.empty(layer.bias.shape, dtype=torch.int64)
    for schedule in set(layer.schedules):
        rows = torch.tensor([index for index, other in enumerate(layer.schedules) if other == schedule])
        counts[rows] = decode_counts(layer.bias[rows], mean_probability[rows], schedule)
    return counts


def _measured(view: View, layer: LastLayer) -> Tensor:
    """(origins, classes) the model's mean output on unlabelled inputs, at the round's start."""
    inputs = view.knows("unlabelled_aux")
    at_start = {number: probabilities(model, inputs).mean(0) for number, model in models_before(view).items()}
    return torch.stack([at_start[origin.round] for origin in layer.of])
