"""Areas under restricted ROC curves for what a malicious server reads of its targets (paper 004, section 2.1.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from scipy import stats
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Curve, Evidence
from fedspill.guesses import Attributes, Guess, Membership
from fedspill.metrics.base import CONFIDENCE, Measured, Metric, Score
from fedspill.seeds import generator
from fedspill.trace import Truth

MAX_FPR = 0.25
_DRAWS = 1000


@final
@dataclass(frozen=True)
class AttributeAuc(Metric):
    """Restricted area over targets that clients trained on; chance is what imputation gets on them, or one half."""

    name: ClassVar[str] = "attribute-auc"
    title: ClassVar[str] = "Attribute of members, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Attributes
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        return _measured(guess, truth, members=True)

    def summarise(self, measured: Measured) -> Score:
        return _area_score(measured, self.max_fpr)

    def evidence(self, guess: Guess, truth: Truth, *, private: bool) -> list[Evidence]:
        measured = self.measure(guess, truth)
        assert measured.trials is not None
        return [_curve(self.title, measured.trials, measured.values)]


@final
@dataclass(frozen=True)
class OutsiderAttributeAuc(Metric):
    """The same over targets that nobody trained on: what does not come from training data does not leak them."""

    name: ClassVar[str] = "attribute-auc-outsiders"
    title: ClassVar[str] = "Attribute of non-members, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Attributes
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        return _measured(guess, truth, members=False)

    def summarise(self, measured: Measured) -> Score:
        return _area_score(measured, self.max_fpr)


@final
@dataclass(frozen=True)
class MembershipAuc(Metric):
    """Restricted area between targets that clients trained on and targets that nobody did; chance is one half."""

    name: ClassVar[str] = "membership-auc"
    title: ClassVar[str] = "Membership, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        assert isinstance(guess, Membership)
        member = _facts(guess, guess.places, truth, "target_members")
        return Measured(guess.scores, torch.zeros_like(guess.scores), member)

    def summarise(self, measured: Measured) -> Score:
        return _area_score(measured, self.max_fpr)


def _measured(guess: Guess, truth: Truth, *, members: bool) -> Measured:
    """Scores, imputed probabilities and true values (as trials) of the targets inside or outside."""
    assert isinstance(guess, Attributes)
    chosen = _facts(guess, guess.places, truth, "target_members") == int(members)
    values = _facts(guess, guess.places, truth, "target_values")
    return Measured(guess.scores[chosen], guess.prior[chosen], values[chosen])


def _facts(guess: Guess, places: Tensor, truth: Truth, name: str) -> Tensor:
    """(targets,) that fact of every target."""
    if any(not truth.has(origin, name) for origin in guess.of):
        raise NotScored(f"the recording does not say {name.replace('_', ' ')}")
    pairs = zip(guess.of, places.tolist(), strict=True)
    return torch.stack([truth.get(origin, name)[place] for origin, place in pairs])


def _area_score(measured: Measured, max_fpr: float) -> Score:
    assert measured.trials is not None
    true, n = measured.trials > 0, len(measured.values)
    if not bool(true.any()) or bool(true.all()):
        return Score.unscored("all targets are alike: nothing to tell apart", n)
    value = restricted_area(true, measured.values, max_fpr)
    low, high = area_interval(true, measured.values, max_fpr)
    return Score(value, low, high, n, max(0.5, restricted_area(true, measured.chance, max_fpr)))


def restricted_area(true: Tensor, scores: Tensor, max_fpr: float = MAX_FPR) -> float:
    """Area under the ROC curve up to `max_fpr`, on McClish's scale: 0.5 is guessing, 1 is perfect. Ties count half."""
    fpr, tpr = roc(true, scores)
    inside = int((fpr <= max_fpr).sum())
    if inside < len(fpr):  # the curve is cut where it crosses the limit
        share = (max_fpr - fpr[inside - 1]) / (fpr[inside] - fpr[inside - 1])
        cut = tpr[inside - 1] + share * (tpr[inside] - tpr[inside - 1])
        fpr = torch.cat([fpr[:inside], torch.tensor([max_fpr], dtype=fpr.dtype)])
        tpr = torch.cat([tpr[:inside], cut[None]])
    area, least, most = float(torch.trapezoid(tpr, fpr)), max_fpr**2 / 2, max_fpr
    return 0.5 * (1 + (area - least) / (most - least)) if max_fpr < 1 else area


def roc(true: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates of all thresholds, from the highest score down; equal scores are one step."""
    order = scores.argsort(descending=True)
    hits, sorted_scores = true[order].double(), scores[order]
    last = torch.cat([sorted_scores[1:] != sorted_scores[:-1], torch.ones(1, dtype=torch.bool)])
    tpr, fpr = hits.cumsum(0)[last] / hits.sum(), (1 - hits).cumsum(0)[last] / (1 - hits).sum()
    start = torch.zeros(1, dtype=torch.float64)
    return torch.cat([start, fpr]), torch.cat([start, tpr])


def area_interval(true: Tensor, scores: Tensor, max_fpr: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact binomial interval at the number of targets that the area's spread is worth.

    The spread comes from drawing the targets anew within each class. It is none when all are told apart, so that the
    number is at most that of the rarer class: eight of eight right are no certainty.
    """
    rng = generator(0, "restricted area")
    classes = [(true == side).nonzero().flatten() for side in (True, False)]
    fewest = min(len(members) for members in classes)
    drawn = []
    for _ in range(_DRAWS):
        again = [members[torch.randint(len(members), (len(members),), generator=rng)] for members in classes]
        picked = torch.cat(again)
        drawn.append(restricted_area(true[picked], scores[picked], max_fpr))
    value, spread = restricted_area(true, scores, max_fpr), float(torch.tensor(drawn).var())
    share = min(max(value, 0.0), 1.0)
    effective = min(share * (1 - share) / spread if spread > 0 else math.inf, float(fewest))
    hits, tail = share * effective, (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, effective - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, effective - hits)) if hits < effective else 1.0
    return min(low, value), max(high, value)


def _curve(title: str, true: Tensor, scores: Tensor) -> Evidence:
    if not bool((true > 0).any()) or bool((true > 0).all()):
        return Curve(title, False, [0.0, 1.0], [0.0, 1.0], "false positives", "true positives", [0.0, 1.0])
    fpr, tpr = roc(true > 0, scores)
    steps = [float(step) for step in torch.linspace(0, 1, 21)]  # of all targets together: no single one shows
    heights = [float(tpr[(fpr <= step).nonzero().max()]) for step in steps]
    return Curve(title, False, steps, heights, "false positives", "true positives", steps)
