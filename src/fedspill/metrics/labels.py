"""Metrics for label counts: attack success rate (paper 003) and error per class, with what guessing would get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.guesses import Guess, LabelCounts
from fedspill.metrics.base import Measured, Metric
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class LabelSuccess(Metric):
    """Share of a batch's labels that the guess has right, labels as a multiset: sum of min(guess, truth) over B."""

    name: ClassVar[str] = "label-asr"
    title: ClassVar[str] = "Labels recovered"
    paper: ClassVar[str] = "003"
    guesses = LabelCounts
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        assert isinstance(guess, LabelCounts)
        real = true_counts(guess, truth)
        best = torch.stack([overlap(baseline, real).mean() for baseline in baselines(real)]).argmax()
        return Measured(overlap(guess.counts, real), overlap(baselines(real)[int(best)], real), real.sum(1))


@final
@dataclass(frozen=True)
class LabelCountError(Metric):
    """Mean absolute error of a class's count, over classes; 0 is perfect."""

    name: ClassVar[str] = "label-count-error"
    title: ClassVar[str] = "Error per class count"
    guesses = LabelCounts
    perfect: ClassVar[float] = 0.0

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        assert isinstance(guess, LabelCounts)
        real = true_counts(guess, truth)
        errors = [_error(baseline, real) for baseline in baselines(real)]
        best = torch.stack([error.mean() for error in errors]).argmin()
        return Measured(_error(guess.counts, real), errors[int(best)])


def true_counts(guess: LabelCounts, truth: Truth) -> Tensor:
    return torch.stack([truth.get(origin, "label_counts") for origin in guess.of]).long()


def overlap(guess: Tensor, real: Tensor) -> Tensor:
    """(batches,) the share of labels in common, as multisets; guess and real (batches, classes)."""
    return torch.minimum(guess.double(), real.double()).sum(1) / real.sum(1)


def baselines(real: Tensor) -> list[Tensor]:
    """What can be guessed without access: even counts, the commonest class alone, and labels at random.

    The commonest class is taken over all batches, which is more than an outsider knows: chance is never understated.
    """
    classes = real.shape[1]
    sizes = real.sum(1)
    even = (sizes[:, None] // classes) + (torch.arange(classes)[None, :] < (sizes % classes)[:, None]).long()
    majority = torch.zeros_like(real)
    majority[:, int(real.sum(0).argmax())] = sizes
    rng = torch.Generator().manual_seed(0)
    random = torch.stack(
        [torch.bincount(torch.randint(classes, (int(n),), generator=rng), minlength=classes) for n in sizes.tolist()]
    )
    return [even, majority, random]


def _error(guess: Tensor, real: Tensor) -> Tensor:
    return (guess - real).abs().double().mean(1)
