"""Metrics for membership: ROC areas, and members found at few false alarms, of targets and of records asked about."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.curve_intervals import Ranking, measure_tpr, own_clusters
from fedspill.errors import NotScored
from fedspill.evidence import Evidence
from fedspill.intervals import SHARE, OverFederations, Scale
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.passive.exposure import exposed_clients, exposed_records, share_above
from fedspill.leaks.membership.passive.truth_of_asked import CountedAnswers, counted_answers
from fedspill.metric import Measured, Metric
from fedspill.roc_area import MAX_FPR, AreaMetric, holders_of, roc_evidence, target_facts
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class MembershipAuc(AreaMetric[Membership]):
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

    def evidence(self, guess: Membership, truth: Truth, *, private: bool) -> list[Evidence]:
        if guess.labels is None:
            return []
        found = counted_answers(guess, truth)
        shown = [roc_evidence("Members told from outsiders", found.member.long(), found.scores)]
        shown += exposed_clients(found)
        return shown + (exposed_records(found) if private else [])


class FoundAtRate(Metric[Membership], ABC):
    """Share of members above the score that a share `rate` of outsiders exceeds."""

    guesses = Membership
    perfect: ClassVar[float] = 1.0
    rate: ClassVar[float]

    @final
    def measure(self, guess: Membership, truth: Truth) -> Measured:
        measured = _measured(guess, truth)
        assert measured.trials is not None
        outsiders = int((measured.trials <= 0).sum())
        if outsiders * self.rate < 1 - 1e-9:  # sums of floats may be off by that
            needed = round(1 / self.rate)
            raise NotScored(f"{outsiders} outsiders cannot show a rate of {self.rate:g}: it takes {needed}")
        return measured

    @final
    def tells(self, part: Measured) -> bool:
        assert part.trials is not None
        return bool((part.trials > 0).any()) and bool((part.trials <= 0).any())

    @final
    def over_federations(self, parts: Sequence[Measured], scale: Scale | None) -> OverFederations:
        rankings = []
        for part in parts:
            assert part.trials is not None
            rankings.append(Ranking(part.trials > 0, part.values, part.own_clusters))
        return measure_tpr(rankings, self.rate, within=parts[0].within)

    @final
    def chance_of(self, part: Measured) -> float:
        """What labels alone find, or the rate itself, whichever is more."""
        assert part.trials is not None
        member = part.trials > 0
        return max(self.rate, share_above(part.chance[member].double(), part.chance[~member].double(), self.rate))


@final
@dataclass(frozen=True)
class MembershipTpr1(FoundAtRate):
    """Share of members found where one outsider in a hundred is a false alarm."""

    name: ClassVar[str] = "membership-tpr-1"
    title: ClassVar[str] = "Members found at 1 % false alarms"
    paper: ClassVar[str] = "Carlini et al. 2022"
    rate: ClassVar[float] = 0.01


@final
@dataclass(frozen=True)
class MembershipTpr01(FoundAtRate):
    """Share of members found where one outsider in a thousand is a false alarm."""

    name: ClassVar[str] = "membership-tpr-01"
    title: ClassVar[str] = "Members found at 0.1 % false alarms"
    paper: ClassVar[str] = "Carlini et al. 2022"
    rate: ClassVar[float] = 0.001


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
        shares, clients = shares_beaten(found.scores, found)
        return Measured(shares, torch.full_like(shares, 0.5), clusters=clients, scale=SHARE)


def shares_beaten(scores: Tensor, found: CountedAnswers) -> tuple[Tensor, Tensor]:
    """(members,) share of the outsiders with its label, asked of the same client, that score lower; and that client."""
    values, clients = [], []
    for label, sender in sorted(set(zip(found.labels.tolist(), found.sender.tolist(), strict=True))):
        same = (found.labels == label) & (found.sender == sender)
        inside, outside = scores[same & found.member], scores[same & ~found.member]
        if len(inside) and len(outside):
            above, equal = inside[:, None] > outside, inside[:, None] == outside
            values.append((above.double() + 0.5 * equal.double()).mean(1))
            clients.append(torch.full((len(inside),), sender))
    if not values:
        raise NotScored("no label has both members and outsiders")
    return torch.cat(values), torch.cat(clients)


def _measured(guess: Membership, truth: Truth) -> Measured:
    """Scores, what labels alone would say, who is a member, and with whom: an outsider is with nobody."""
    if guess.labels is None:
        member = target_facts(guess, guess.places, truth, "target_members")
        holders = holders_of(guess, guess.places, truth)
        return Measured(guess.scores, torch.zeros_like(guess.scores), member, holders)
    found = counted_answers(guess, truth)
    if len(found.scores) == 0:
        raise NotScored("none of the records asked about was trained on or held out")
    holders = own_clusters(torch.where(found.member, found.sender, -1))
    return Measured(found.scores, found.label_only, found.member.long(), holders)
