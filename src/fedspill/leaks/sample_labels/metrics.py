"""Metrics for labels of single samples: how many are right, and of two classes the area under the ROC curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.intervals import SAMPLES
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.metric import Measured, Metric
from fedspill.roc_area import AreaMetric, roc_evidence
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class SampleLabelAccuracy(Metric[SampleLabels]):
    """Share of samples whose label is read right; guessing names the commonest class, which it is told."""

    name: ClassVar[str] = "sample-label-accuracy"
    title: ClassVar[str] = "Labels of single samples read right"
    paper: ClassVar[str] = "Fu et al. 2022"
    guesses = SampleLabels
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: SampleLabels, truth: Truth) -> Measured:
        real = true_labels(guess, truth)
        labels = torch.cat(real)
        said = torch.cat([scores.argmax(1) for scores in guess.scores])
        commonest = torch.bincount(labels).argmax()
        right, chance = (said == labels).double(), (labels == commonest).double()
        return Measured(right, chance, torch.ones_like(labels), None, SAMPLES)


@final
@dataclass(frozen=True)
class SampleLabelAuc(AreaMetric[SampleLabels]):
    """Of two classes: how often a sample of the second is scored above one of the first; guessing gets one half."""

    name: ClassVar[str] = "sample-label-auc"
    title: ClassVar[str] = "Samples of two classes told apart (ROC area)"
    paper: ClassVar[str] = "Li et al. 2021"
    guesses = SampleLabels
    perfect: ClassVar[float] = 1.0
    max_fpr: float = 1.0

    def measure(self, guess: SampleLabels, truth: Truth) -> Measured:
        scores, real = _of_two_classes(guess, truth)
        return Measured(scores, torch.zeros_like(scores), real, None, SAMPLES)

    def evidence(self, guess: SampleLabels, truth: Truth, *, private: bool) -> list[Evidence]:
        scores, real = _of_two_classes(guess, truth)
        return [roc_evidence("Samples of two classes", real, scores)]


def _of_two_classes(guess: SampleLabels, truth: Truth) -> tuple[Tensor, Tensor]:
    real, scores = torch.cat(true_labels(guess, truth)), torch.cat([own.double() for own in guess.scores])
    if scores.shape[1] != 2:
        raise NotScored("there are more than two classes")
    return scores[:, 1] - scores[:, 0], real


def true_labels(guess: SampleLabels, truth: Truth) -> list[Tensor]:
    """Of each round (samples,): the labels of those that the guess speaks of."""
    found = []
    for origin, places in zip(guess.of, guess.places, strict=True):
        if not truth.has(origin, "input_labels"):
            raise NotScored("the samples' labels are not at hand")
        labels = truth.get(origin, "input_labels")
        if len(places) and int(places.max()) >= len(labels):
            raise NotScored(f"round {origin.round} has {len(labels)} samples, the guess speaks of more")
        found.append(labels[places])
    if not sum(map(len, found)):
        raise NotScored("the guess speaks of no sample")
    return found
