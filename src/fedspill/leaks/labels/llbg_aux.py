"""LLBG-aux: LLBG for trained models, each class's confidence from auxiliary data (paper 003, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.leaks.labels.llbg import llbg_guess
from fedspill.observe.last_layer import read_last_layer
from fedspill.observe.probe import class_confidence, models_before
from fedspill.reads import MODELS_AND_HEAD_OF_UPDATES
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LLBGAux(Attack):
    """Algorithm 2, for trained models, with each class's mean confidence measured on labelled auxiliary samples."""

    name: ClassVar[str] = "llbg-aux"
    title: ClassVar[str] = "Label counts from the last bias gradient of a trained model, confidence from auxiliary data"
    paper: ClassVar[str] = "003"
    needs = needs(
        sees=["update|gradient|aggregate", "model"], knows=["batch_size", "local_lr", "architecture", "aux_data"]
    )
    reads = MODELS_AND_HEAD_OF_UPDATES
    leak = LABELS

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        models = models_before(view)
        for origin in layer.of:
            if origin.round not in models:
                raise NotApplicable(f"The model of round {origin.round} was not recorded.")
        confidence = {
            number: class_confidence(model, view.knows("aux_data"), layer.classes) for number, model in models.items()
        }
        return llbg_guess(layer, torch.stack([confidence[origin.round] for origin in layer.of]), self.name)
