"""Metrics for membership: areas under the ROC curve, and members found at a stated rate of false alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.intervals import binomial_interval
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.passive.truth_of_asked import CountedAnswers, counted_answers
from fedspill.metric import Measured, Metric, Score
from fedspill.roc_area import MAX_FPR, area_score, roc_evidence, target_facts
from fedspill.seeds import generator
from fedspill.trace import Truth

_DRAWS = 500


@final
@dataclass(frozen=True)
class MembershipAuc(Metric[Membership]):
    """Restricted area between records that clients trained on and records that nobody did.

    Chance is one half, or what knowing the client's labels alone would get, whichever is more.
    """

    name: ClassVar[str] = "membership-auc"
    title: ClassVar[str] = "Membership, restricted ROC area"
    paper: ClassVar[str] = "004"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    max_fpr: float = MAX_FPR

    def measure(self, guess: Membership, truth: Truth) -> Measured:
        return _measured(guess, truth)

    def summarise(self, measured: Measured) -> Score:
        return area_score(measured, self.max_fpr)

    def evidence(self, guess: Membership, truth: Truth, *, private: bool) -> list[Evidence]:
        if guess.labels is None:
            return []
        measured = _measured(guess, truth)
        assert measured.trials is not None
        return [roc_evidence("Members told from outsiders", measured.trials, measured.values)]


@final
@dataclass(frozen=True)
class MembershipTpr1(Metric[Membership]):
    """Share of members found where one outsider in a hundred is a false alarm."""

    name: ClassVar[str] = "membership-tpr-1"
    title: ClassVar[str] = "Members found at 1 % false alarms"
    paper: ClassVar[str] = "Carlini et al. 2022"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Membership, truth: Truth) -> Measured:
        return _measured(guess, truth)

    def summarise(self, measured: Measured) -> Score:
        return found_at(measured, 0.01)


@final
@dataclass(frozen=True)
class MembershipTpr01(Metric[Membership]):
    """Share of members found where one outsider in a thousand is a false alarm."""

    name: ClassVar[str] = "membership-tpr-01"
    title: ClassVar[str] = "Members found at 0.1 % false alarms"
    paper: ClassVar[str] = "Carlini et al. 2022"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Membership, truth: Truth) -> Measured:
        return _measured(guess, truth)

    def summarise(self, measured: Measured) -> Score:
        return found_at(measured, 0.001)


@final
@dataclass(frozen=True)
class LabelMatchedAuc(Metric[Membership]):
    """Area between members and outsiders of the same label, as asked of the same client: labels tell nothing.

    The mean over members of the share of outsiders with its label that score lower; ties count half.
    """

    name: ClassVar[str] = "label-matched-auc"
    title: ClassVar[str] = "Membership, ROC area among records of one label"
    guesses = Membership
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Membership, truth: Truth) -> Measured:
        if guess.labels is None:
            raise NotScored("targets of a malicious server carry no label")
        found = counted_answers(guess, truth, of_every_client=True)
        shares = shares_beaten(found.scores, found)
        return Measured(shares, torch.full_like(shares, 0.5))


def shares_beaten(scores: Tensor, found: CountedAnswers) -> Tensor:
    """(members,) share of the outsiders with the same label, asked of the same client, that score lower than each."""
    values = []
    for group in sorted(set(zip(found.labels.tolist(), found.sender.tolist(), strict=True))):
        same = (found.labels == group[0]) & (found.sender == group[1])
        inside, outside = scores[same & found.member], scores[same & ~found.member]
        if len(inside) and len(outside):
            above, equal = inside[:, None] > outside, inside[:, None] == outside
            values.append((above.double() + 0.5 * equal.double()).mean(1))
    if not values:
        raise NotScored("no label has both members and outsiders")
    return torch.cat(values)


def _measured(guess: Membership, truth: Truth) -> Measured:
    """Scores, what labels alone would say, and who is a member."""
    if guess.labels is None:
        member = target_facts(guess, guess.places, truth, "target_members")
        return Measured(guess.scores, torch.zeros_like(guess.scores), member)
    found = counted_answers(guess, truth)
    if len(found.scores) == 0:
        raise NotScored("none of the records asked about was trained on or held out")
    return Measured(found.scores, found.label_only, found.member.long())


def found_at(measured: Measured, rate: float) -> Score:
    """Members above the score that a share `rate` of outsiders exceeds. Too few outsiders to show it: unscored."""
    assert measured.trials is not None
    member, n = measured.trials > 0, len(measured.values)
    outsiders = int((~member).sum())
    if not bool(member.any()):
        return Score.unscored("no member was asked about", n)
    if outsiders * rate < 1 - 1e-9:
        needed = round(1 / rate)
        return Score.unscored(f"{outsiders} outsiders cannot show a rate of {rate:g}: it takes {needed}", n)
    inside, outside = measured.values[member].double(), measured.values[~member].double()
    value = share_above(inside, outside, rate)
    rng = generator(0, "members found")
    drawn = torch.tensor([share_above(_again(inside, rng), _again(outside, rng), rate) for _ in range(_DRAWS)])
    low, high = (float(drawn.quantile(q)) for q in (0.025, 0.975))
    few = binomial_interval(value * len(inside), len(inside))  # drawing anew shows no spread where all are found
    guessed = share_above(measured.chance[member].double(), measured.chance[~member].double(), rate)
    return Score(value, min(low, few[0], value), max(high, few[1], value), n, max(rate, guessed))


def share_above(inside: Tensor, outside: Tensor, rate: float) -> float:
    """Share of `inside` strictly above the threshold that at most a share `rate` of `outside` exceeds."""
    allowed = int(rate * len(outside) + 1e-9)
    threshold = outside.sort(descending=True).values[min(allowed, len(outside) - 1)]
    return float((inside > threshold).double().mean())


def _again(values: Tensor, rng: torch.Generator) -> Tensor:
    return values[torch.randint(len(values), (len(values),), generator=rng)]
