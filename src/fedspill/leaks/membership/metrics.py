"""Metrics for membership: the restricted ROC area between targets that were trained on and others (paper 004)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.leaks.membership.guess import Membership
from fedspill.metric import Measured
from fedspill.roc_area import MAX_FPR, AreaMetric, holders_of, target_facts
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class MembershipAuc(AreaMetric[Membership]):
    """Restricted area between targets that clients trained on and targets that nobody did; chance is one half."""

    name: ClassVar[str] = "membership-auc"
    title: ClassVar[str] = "Membership, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Membership, truth: Truth) -> Measured:
        member = target_facts(guess, guess.places, truth, "target_members")
        holders = holders_of(guess, guess.places, truth)
        return Measured(guess.scores, torch.zeros_like(guess.scores), member, holders)
