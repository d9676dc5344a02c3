"""Metrics for the presence of labels in a round (paper 002): balanced accuracy, and the paper's plain success rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.errors import NothingToGuess
from fedspill.intervals import ROUNDS, OverFederations, Scale
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.quantity.round_truth import Owned, true_owners
from fedspill.metric import Measured, Metric, numbered
from fedspill.rate_intervals import Answers, measure_balanced
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class BalancedPresence(Metric[Presence]):
    """Mean of the success on labels that are there and on labels that are not; guessing gets one half.

    In the paper's setting a label is absent once in 200 times, so that "always present" has a success rate of 99 %.
    """

    name: ClassVar[str] = "presence-balanced-accuracy"
    title: ClassVar[str] = "Labels of a round told present or absent (balanced)"
    paper: ClassVar[str] = "002"
    guesses = Presence
    perfect: ClassVar[float] = 1.0

    owned: Owned = "main"

    def measure(self, guess: Presence, truth: Truth) -> Measured:
        there = true_owners(guess.of, truth, guess.me, self.owned, guess.present.shape[1]) > 0
        if not bool(there.any()) or bool(there.all()):
            raise NothingToGuess("nothing to tell apart, since every class is present in every round, or none is")
        labels = there.shape[1]
        rounds = numbered([origin.round for origin in guess.of]).repeat_interleave(labels)
        right = (guess.present == there).double().flatten()
        return Measured(right, torch.full_like(right, 0.5), there.long().flatten(), rounds, ROUNDS)

    def tells(self, part: Measured) -> bool:
        return _answers(part).both

    def over_federations(self, parts: Sequence[Measured], scale: Scale | None) -> OverFederations:
        return measure_balanced([_answers(part) for part in parts], within=parts[0].within)


@final
@dataclass(frozen=True)
class PresenceSuccess(Metric[Presence]):
    """Share of labels told right, as the paper counts; beside it what "always present" or "never present" gets."""

    name: ClassVar[str] = "presence-success"
    title: ClassVar[str] = "Labels of a round told present or absent"
    paper: ClassVar[str] = "002"
    guesses = Presence
    perfect: ClassVar[float] = 1.0

    owned: Owned = "main"

    def measure(self, guess: Presence, truth: Truth) -> Measured:
        there = true_owners(guess.of, truth, guess.me, self.owned, guess.present.shape[1]) > 0
        always = there.double().mean(1)
        constant = always if always.mean() >= 0.5 else 1 - always
        trials = torch.full((len(there),), there.shape[1])
        rounds = numbered([origin.round for origin in guess.of])
        return Measured((guess.present == there).double().mean(1), constant, trials, rounds, ROUNDS)


def _answers(part: Measured) -> Answers:
    """One value for each round and label; `trials` says whether the label was there."""
    assert part.trials is not None
    return Answers(part.values > 0.5, part.trials > 0, part.own_clusters)
