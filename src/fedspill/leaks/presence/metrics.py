"""Metrics for the presence of labels in a round (paper 002): balanced accuracy, and the paper's plain success rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.errors import NothingToGuess
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.quantity.round_truth import Owned, true_owners
from fedspill.metric import Measured, Metric, Score
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
            raise NothingToGuess("every label is present in every round, or none is: nothing to balance")
        right = (guess.present == there).double()
        # Each round's successes, weighted so that their mean over rounds is the mean of the two rates.
        weight = torch.where(there, 0.5 / there.sum(), 0.5 / (~there).sum())
        values = (right * weight).sum(1) * len(there)
        return Measured(values, torch.full_like(values, 0.5))

    def summarise(self, measured: Measured) -> Score:
        """A round's weighted successes may exceed 1; a rate, and the interval of one, may not."""
        score = super().summarise(measured)
        return replace(score, low=max(score.low, 0.0), high=min(score.high, 1.0)) if score.status == "ok" else score


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
        return Measured((guess.present == there).double().mean(1), constant, trials)
