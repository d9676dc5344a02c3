"""Active label inference: completion by a party whose tower the joint model was made to rely on (Fu et al. 2022)."""

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
    COMPLETION_KNOWS,
    COMPLETION_SEES,
    MixMatchEffort,
    complete_model,
)
from fedspill.threat import ALTER_TRAINING, needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class ActiveCompletion(Attack):
    """Model completion after a malicious optimizer: the party's own steps go up to five times as far as agreed.

    The federation is run with such a party 0 (federation/malicious_step.py); then its tower is completed as in
    model-completion.
    """

    name: ClassVar[str] = "active-completion"
    title: ClassVar[str] = "Labels by completing a tower that trained too fast"
    paper: ClassVar[str] = "Fu et al. 2022, Label Inference Attacks Against Vertical Federated Learning"
    needs = needs(sees=COMPLETION_SEES, knows=COMPLETION_KNOWS, does=[ALTER_TRAINING])
    leak = SAMPLE_LABELS
    control: ClassVar[Mapping[str, Any]] = COMPLETION_CONTROL

    steps: int = 1000

    def run(self, view: View, rng: torch.Generator) -> SampleLabels:
        return complete_model(view, MixMatchEffort(steps=self.steps), rng, self.name)
