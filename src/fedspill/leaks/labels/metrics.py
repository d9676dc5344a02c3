"""Metrics for label counts: attack success rate (paper 003) and error per class, with what guessing would get."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.chance import label_chance
from fedspill.errors import NoTruth, NotScored
from fedspill.evidence import Bars, Curve, Evidence, Pairs
from fedspill.intervals import RESOLUTION, Scale
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.trace import Truth

ENOUGH = 100  # samples behind a total, so that it says nothing about a single one
GROUPS = 5  # of equally many batches, from the least to the most confident
CELLS = 12  # steps of the count axes in a plot: counts are grouped, not listed


@final
@dataclass(frozen=True)
class LabelSuccess(Metric[LabelCounts]):
    """Share of a batch's labels that the guess has right, labels as a multiset: sum of min(guess, truth) over B."""

    name: ClassVar[str] = "label-asr"
    title: ClassVar[str] = "Labels recovered"
    paper: ClassVar[str] = "003"
    guesses = LabelCounts
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: LabelCounts, truth: Truth) -> Measured:
        real = true_counts(guess, truth)
        clusters, within = clusters_of(guess.of)
        chance = label_chance(real, clusters)
        return Measured(overlap(guess.counts, real), chance, real.sum(1), clusters, within)

    def evidence(self, guess: LabelCounts, truth: Truth, *, private: bool) -> list[Evidence]:
        real = true_counts(guess, truth)
        names = [""] * real.shape[1]
        shown: list[Evidence] = [_pairs(guess.counts, real)]
        if int(real.sum()) >= ENOUGH:
            total = _floats(real.sum(0)), _floats(guess.counts.sum(0))
            shown.append(Bars("Labels of all clients together", False, names, *total))
        if guess.confidence is not None and len(real) >= 2 * GROUPS:
            shown.append(_calibration(guess.confidence, overlap(guess.counts, real)))
        if private:
            shown.append(Bars("Labels of one client", True, names, _floats(real[0]), _floats(guess.counts[0])))
        return shown


@final
@dataclass(frozen=True)
class LabelCountError(Metric[LabelCounts]):
    """Mean absolute error of a class's count, over classes; 0 is perfect."""

    name: ClassVar[str] = "label-count-error"
    title: ClassVar[str] = "Error per class count"
    guesses = LabelCounts
    perfect: ClassVar[float] = 0.0

    def measure(self, guess: LabelCounts, truth: Truth) -> Measured:
        real = true_counts(guess, truth)
        errors = [_error(baseline, real) for baseline in baselines(real)]
        best = torch.stack([error.mean() for error in errors]).argmin()
        found, chance = _error(guess.counts, real), errors[int(best)]
        # Every label wrong is two errors for each; an attack may name more labels than there are.
        worst = float(torch.cat([2 * real.sum(1).double() / real.shape[1], found, chance]).max())
        scale = Scale(max(worst, RESOLUTION), 0.0, failed=float(chance.mean()))
        return Measured(found, chance, None, *clusters_of(guess.of), scale)


def true_counts(guess: LabelCounts, truth: Truth) -> Tensor:
    """(origins, classes) what the guess is about; as many classes as it speaks of, not merely broadcastable."""
    if not guess.of:
        raise NotScored("nothing to score")
    for origin in guess.of:
        if not truth.has(origin, "label_counts"):
            raise NoTruth(f"nothing is known of the labels of {origin.sender} in round {origin.round}")
    real = torch.stack([truth.get(origin, "label_counts") for origin in guess.of]).long()
    if real.shape != guess.counts.shape:
        raise NotScored(f"the guess speaks of {guess.counts.shape[1]} classes, there are {real.shape[1]}")
    return real


def overlap(guess: Tensor, real: Tensor) -> Tensor:
    """(batches,) the share of labels in common, as multisets; guess and real (batches, classes).

    Of the labels guessed if these are more than there are: naming every label often does not recover any.
    """
    return torch.minimum(guess.double(), real.double()).sum(1) / torch.maximum(guess.sum(1), real.sum(1))


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


def _pairs(guess: Tensor, real: Tensor) -> Pairs:
    """How often a class truly had so many samples and was guessed to have so many, in groups of equal width."""
    width = max(1, -(-int(torch.maximum(guess.max(), real.max())) // CELLS))
    grouped = [((counts + width // 2) // width * width).flatten().tolist() for counts in (real, guess)]
    times = Counter(zip(*grouped, strict=True))
    cells = sorted(times)
    title = "Samples of a class in a client's batch"
    return Pairs(title, False, [c[0] for c in cells], [c[1] for c in cells], [times[cell] for cell in cells])


def _calibration(stated: Tensor, right: Tensor) -> Curve:
    """The share of labels that was right (batches,) over what the attack expected (batches,), groups of batches."""
    order = stated.argsort(stable=True)
    groups = [(float(stated[part].mean()), float(right[part].mean())) for part in order.tensor_split(GROUPS)]
    expected, measured = [x for x, _ in groups], [y for _, y in groups]
    title, axes = "Confidence against success", ("share of labels that the attack expects to have right", "measured")
    return Curve(title, False, expected, measured, *axes, expected, "as stated")


def _floats(values: Tensor) -> list[float]:
    return [float(value) for value in values]
