"""Metrics for attributes: restricted ROC areas over targets inside and outside the training data (paper 004)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from fedspill.evidence import Evidence
from fedspill.leaks.attributes.guess import Attributes
from fedspill.metric import Measured
from fedspill.roc_area import MAX_FPR, AreaMetric, holders_of, roc_evidence, target_facts
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class AttributeAuc(AreaMetric[Attributes]):
    """Restricted area over targets that clients trained on; chance is what imputation gets on them, or one half."""

    name: ClassVar[str] = "attribute-auc"
    title: ClassVar[str] = "Attribute of members, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Attributes
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Attributes, truth: Truth) -> Measured:
        return _measured(guess, truth, members=True)

    def evidence(self, guess: Attributes, truth: Truth, *, private: bool) -> list[Evidence]:
        measured = self.measure(guess, truth)
        assert measured.trials is not None
        return [roc_evidence(self.title, measured.trials, measured.values)]


@final
@dataclass(frozen=True)
class OutsiderAttributeAuc(AreaMetric[Attributes]):
    """The same over targets that nobody trained on: what does not come from training data does not leak them."""

    name: ClassVar[str] = "attribute-auc-outsiders"
    title: ClassVar[str] = "Attribute of non-members, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Attributes
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Attributes, truth: Truth) -> Measured:
        return _measured(guess, truth, members=False)


def _measured(guess: Attributes, truth: Truth, *, members: bool) -> Measured:
    """Scores, imputed probabilities and true values (as trials) of the targets inside or outside."""
    chosen = target_facts(guess, guess.places, truth, "target_members") == int(members)
    values = target_facts(guess, guess.places, truth, "target_values")
    holders = holders_of(guess, guess.places, truth)
    return Measured(guess.scores[chosen], guess.prior[chosen], values[chosen], holders[chosen])
