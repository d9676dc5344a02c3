"""Passive label inference by model completion (Fu et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.received.completion import (
    COMPLETION_CONTROL,
    COMPLETION_NEEDS,
    MixMatchEffort,
    complete_model,
)
from fedspill.trace import View


@final
@dataclass(frozen=True)
class ModelCompletion(Attack):
    """The party puts a head behind its own trained tower and fits both to the few labels it knows, by MixMatch.

    It reads nothing that comes back, only what training made of its tower; a party whose features say nothing of the
    label learns nothing. The paper's images are augmented by turns and cuts; here nothing is, as its tables are not.
    """

    name: ClassVar[str] = "model-completion"
    title: ClassVar[str] = "Labels by completing one's own tower"
    paper: ClassVar[str] = "Fu et al. 2022, Label Inference Attacks Against Vertical Federated Learning"
    needs = COMPLETION_NEEDS
    leak = SAMPLE_LABELS
    control: ClassVar[Mapping[str, Any]] = COMPLETION_CONTROL

    steps: int = 1000

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        return complete_model(view, MixMatchEffort(steps=self.steps), rng, self.name)
