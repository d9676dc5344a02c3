"""Direct label inference: where the head only adds up, a gradient is negative at its label alone (Fu et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.gradients import GRADIENT_NEEDS, known_or_none, read_received
from fedspill.trace import View


@final
@dataclass(frozen=True)
class DirectLabels(Attack):
    """Says the class of the one negative entry, as gradients of logits have it.

    For federations without a head of its own: parties send logits, which are added up (model "vertical-mlp" with
    top = "sum"). Elsewhere embeddings have another width, or several entries are negative, and it does not apply.
    """

    name: ClassVar[str] = "direct-labels"
    title: ClassVar[str] = "Labels by the sign of gradients of logits"
    paper: ClassVar[str] = "Fu et al. 2022, Label Inference Attacks Against Vertical Federated Learning"
    needs = GRADIENT_NEEDS
    leak = SAMPLE_LABELS
    control: ClassVar[Mapping[str, Any]] = {
        **SAMPLE_LABELS.control,
        "model": {"name": "vertical-mlp", "widths": [16, 2], "top": "sum"},
    }

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        received = read_received(view)
        if received.visits.shape[2] != received.classes:
            raise NotApplicable(
                f"Embeddings have {received.visits.shape[2]} numbers, not one for each of {received.classes} classes: "
                "the head does more than add up."
            )
        gradients = received.visits.sum(0)
        negative = (received.visits[received.seen] < 0).sum(1)
        if float((negative == 1).double().mean()) < 0.5:
            raise NotApplicable("Most gradients have several negative entries: the head does more than add up.")
        return received.guess(-gradients, known_or_none(view, received).samples)
