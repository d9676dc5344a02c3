"""Habits: what clients may do in training that no protocol says, so that an adversary tries it out.

A protocol names the optimizer and the batch size. That labels are smoothed or samples altered stands in the clients'
code alone, and changes what an update says about labels more than any optimizer does once the model is trained.
Rehearsed clients can have such a habit too, and what the real ones sent says which habit explains it best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.federation.guarded import Blend, GuardedTraining, StepRule, guarded
from fedspill.training import LocalTraining

SMOOTHED = 0.1  # of a label is spread over all classes: the usual amount (Szegedy et al. 2016)
ALTERED = 0.3  # of the inputs' spread: seen, and far from hiding what a sample is (convention)


@final
@dataclass(frozen=True)
class MixedSamples(StepRule):
    """Pairs of samples are learned, mixed in a proportion that is drawn evenly for each step (Zhang et al. 2018)."""

    def blend(self, clients: int, samples: int, rng: torch.Generator) -> Blend:
        partner = torch.stack([torch.randperm(samples, generator=rng) for _ in range(clients)])
        return Blend(partner, torch.rand(clients, generator=rng))


@final
@dataclass(frozen=True)
class AlteredSamples(StepRule):
    """Every sample is altered a little, anew in every step, as augmentation does; here by noise."""

    spread: float  # of all inputs

    def inputs(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return x + ALTERED * self.spread * torch.randn(x.shape, generator=rng, dtype=x.dtype).to(x.device)


@final
@dataclass(frozen=True)
class FocalLoss(StepRule):
    """Samples that the model knows count for less, by the square of what it lacks (Lin et al. 2017)."""

    def weighed(self, losses: Tensor, targets: Tensor) -> Tensor:
        return (1 - (-losses).exp()).square() * losses


def unsaid_habits(training: LocalTraining, inputs: Tensor) -> Iterator[LocalTraining]:
    """The same training with each habit that clients with such inputs may have."""
    apart = isinstance(training, GuardedTraining) and (training.clip is not None or not training.can_be_stacked)
    if training.algorithm == "fedsgd" or apart:
        return
    yield LabelSmoothing(SMOOTHED).local(training)
    yield guarded(training, FocalLoss())
    if inputs.is_floating_point():
        yield guarded(training, MixedSamples())
        yield guarded(training, AlteredSamples(float(inputs.std())))
