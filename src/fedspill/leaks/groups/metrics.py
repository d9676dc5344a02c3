"""Metrics for Whole Determination (paper 002): exact grouping, the largest group told apart, and rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from scipy import stats
from torch import Tensor

from fedspill.errors import NothingToGuess, NoTruth, NotScored
from fedspill.intervals import CONFIDENCE, CORRELATION, LABELS, Interval, OverFederations, Scale, within_confidence
from fedspill.leaks.groups.guess import Groups
from fedspill.metric import Measured, Metric
from fedspill.trace import Truth

ALIKE = 1.1  # labels whose totals differ by less than this factor belong to one group


@final
@dataclass(frozen=True)
class ExactGroups(Metric[Groups]):
    """Share of models whose labels are grouped exactly, number of groups included; "cannot tell" is a miss."""

    name: ClassVar[str] = "groups-exact"
    title: ClassVar[str] = "Labels grouped exactly"
    paper: ClassVar[str] = "002"
    guesses = Groups
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Groups, truth: Truth) -> Measured:
        hits = [
            bool(told) and bool((true_groups(total) == group).all())
            for group, total, told in zip(guess.group, true_totals(guess, truth), guess.answered, strict=True)
        ]
        return _share(hits)


@final
@dataclass(frozen=True)
class LargestGroup(Metric[Groups]):
    """Share of models for which the labels of the largest group are told apart from all others."""

    name: ClassVar[str] = "groups-largest"
    title: ClassVar[str] = "Large labels told from small ones"
    guesses = Groups
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Groups, truth: Truth) -> Measured:
        hits = [
            bool(told) and bool(((true_groups(total) == 0) == (group == 0)).all())
            for group, total, told in zip(guess.group, true_totals(guess, truth), guess.answered, strict=True)
        ]
        return _share(hits)


@final
@dataclass(frozen=True)
class RankCorrelation(Metric[Groups]):
    """Spearman's correlation between guessed and true amounts of the labels; 0 is guessing."""

    name: ClassVar[str] = "groups-rank-correlation"
    title: ClassVar[str] = "Labels ordered by amount"
    guesses = Groups
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Groups, truth: Truth) -> Measured:
        values = [
            float(stats.spearmanr(amount.numpy(), total.numpy()).statistic)
            for amount, total in zip(guess.amount, true_totals(guess, truth), strict=True)
            if bool((total != total[0]).any()) and bool((amount != amount[0]).any())
        ]
        if not values:
            raise NothingToGuess("all labels have equally many samples")
        labels = torch.full((len(values),), guess.amount.shape[1])
        return Measured(torch.tensor(values, dtype=torch.float64), torch.zeros(len(values)), labels)

    def over_federations(self, parts: Sequence[Measured], scale: Scale | None) -> OverFederations:
        """One federation has only itself to average over: its labels are what varies."""
        values = torch.cat([part.values for part in parts])
        labels = torch.cat([part.trials for part in parts if part.trials is not None])
        sure = within_confidence(len(parts), CONFIDENCE)
        clustered = Interval(*correlation_interval(values, labels, sure), LABELS, int(labels.sum()))
        means = tuple(float(part.values.mean()) for part in parts)
        return OverFederations(means, clustered, CORRELATION.ends)


def correlation_interval(values: Tensor, labels: Tensor, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval for the mean rank correlation of federations with that many labels each, on Fisher's scale.

    The standard error of a rank correlation is that of Bonett and Wright (2000); three labels or fewer say nothing.
    """
    if bool((labels <= 3).any()):
        return -1.0, 1.0
    kept = values.double().clamp(-0.999, 0.999)
    variance = ((1 + kept**2 / 2) / (labels - 3)).sum() / len(kept) ** 2
    half = float(stats.norm.ppf((1 + confidence) / 2)) * float(variance.sqrt())
    centre = float(kept.atanh().mean())
    return math.tanh(centre - half), math.tanh(centre + half)


def true_totals(guess: Groups, truth: Truth) -> list[Tensor]:
    """For each origin the samples (classes,) of each label in the whole federation."""
    totals = []
    for origin in guess.of:
        # The model of the last round is handed out before that round is noted: the totals never change.
        if not truth.has(origin, "label_totals"):
            raise NoTruth(f"nothing is known of the federation's labels in round {origin.round}")
        totals.append(truth.get(origin, "label_totals"))
    if not totals or len(totals[0]) != guess.amount.shape[1]:
        raise NotScored("nothing to score, or another number of classes")
    return totals


def true_groups(totals: Tensor) -> Tensor:
    """(classes,) 0 for the labels with most samples, a new number where the next differs by the factor ALIKE."""
    order = totals.argsort(descending=True, stable=True)
    values = totals[order].double()
    border = values[:-1] > ALIKE * values[1:]
    number = torch.cat([torch.zeros(1, dtype=torch.int64), border.long().cumsum(0)])
    return torch.empty_like(number).scatter_(0, order, number)


def _share(hits: list[bool]) -> Measured:
    values = torch.tensor(hits, dtype=torch.float64)
    return Measured(values, torch.zeros_like(values), torch.ones_like(values))
