"""LLBG, LLBG-gamma, LLBG-aux: labels from the last bias gradient, impact known (paper 003, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attacks.base import Attack
from fedspill.attacks.greedy import greedy_counts
from fedspill.attacks.last_layer import LABEL_NEEDS, LastLayer, read_last_layer
from fedspill.attacks.probe import class_confidence, models_before
from fedspill.errors import NotApplicable, UsageError
from fedspill.guesses import LabelCounts
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class LLBG(Attack):
    """Algorithm 1, for untrained models: each sample moves its class by one over the samples of a local step."""

    name: ClassVar[str] = "llbg"
    title: ClassVar[str] = "Label counts from the last bias gradient"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    guesses = LabelCounts

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return llbg_guess(layer, torch.zeros(len(layer.of), layer.classes), self.name)


@final
@dataclass(frozen=True)
class LLBGGamma(Attack):
    """Algorithm 2, for trained models, with one constant as every class's mean confidence."""

    name: ClassVar[str] = "llbg-gamma"
    title: ClassVar[str] = "Label counts from the last bias gradient of a trained model, one confidence for all classes"
    paper: ClassVar[str] = "003"
    needs = LABEL_NEEDS
    guesses = LabelCounts

    gamma: float = 0.7  # the best of the paper's three

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise UsageError(f"gamma is a mean confidence in [0, 1), got {self.gamma}.")

    def run(self, view: View, rng: torch.Generator) -> LabelCounts:
        layer = read_last_layer(view)
        return llbg_guess(layer, torch.full((len(layer.of), layer.classes), self.gamma), self.name)


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
    guesses = LabelCounts

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


def llbg_guess(layer: LastLayer, confidence: Tensor, attack: str) -> LabelCounts:
    per_step = torch.tensor([schedule.per_step for schedule in layer.schedules])
    counts = llbg_counts(layer.require_bias(attack), per_step, layer.samples, confidence)
    return LabelCounts(layer.of, counts, layer.notes)


def llbg_counts(bias: Tensor, per_step: Tensor, samples: Tensor, confidence: Tensor) -> Tensor:
    """Counts (batches, classes); bias and confidence (batches, classes), per_step and samples (batches,).

    The paper's B in m = -1/B is the number of samples in one local step, since the update sums step gradients.
    """
    return greedy_counts(bias, -(1 - confidence) / per_step[:, None], samples)
