"""The audit's passive membership attack: three statistics, chosen by evidence and calibrated for each client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP, PASSIVE_CONTROL
from fedspill.leaks.membership.passive.answers import answers
from fedspill.leaks.membership.passive.asked_records import asked_of
from fedspill.leaks.membership.passive.calibration import counted_rate, surprise
from fedspill.leaks.membership.passive.observed import read_observed
from fedspill.leaks.membership.passive.own_statistics import Question, Statistic, statistics
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class PassiveMembership(Attack):
    """Says how surprising each record would be, had nobody trained on it.

    A record that a client trained on lies in the row space of what that client sent, however well the model
    generalises. Exact span reads that where a layer has more inputs than there are records; soft span where it has not;
    the whitened gradient everywhere else. The score is minus log10 of the chance that a record nobody trained on would
    score as high, counted on auxiliary records for each client: above 2, one outsider in a hundred is a false alarm.
    Weight decay adds a part to an update that no record made, which exact span does not take out.
    """

    name: ClassVar[str] = "membership"
    title: ClassVar[str] = "Membership by row spaces and whitened gradients"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["model"], knows=["architecture", "asked_records", "aux_data"])
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    only: str = ""  # "exact span", "soft span" or "whitened gradient"; empty: by evidence

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        auxiliary: Examples = view.knows("aux_data")
        question = Question.of(Examples(asked.x, asked.y), auxiliary, rng)
        found = statistics(observed, question, self.only)
        if not found or len(question.left_out) < 2:
            what = f"{self.only} cannot be had" if self.only else "no linear layer sees one vector per record"
            raise NotApplicable(f"Membership cannot be read: {what}, or there are too few auxiliary records.")
        surprises = [surprise(one.asked, one.outsiders) for one in found]
        rate = max(0.01, counted_rate(len(question.left_out)))
        best, alarms = chosen(surprises, rate)
        return answers(observed, asked, surprises[best], _notes(found, best, alarms, rate, surprises[best]))


def chosen(surprises: Sequence[Tensor], rate: float) -> tuple[int, list[int]]:
    """Which statistic to believe, and how many answers each calls surprising at that rate of false alarms.

    Were nobody's records among those asked about, each would call about the same few surprising. What is more is
    evidence. The sharpest statistic, which comes first, is kept unless another finds surely more.
    """
    alarms = [int((table >= -math.log10(rate)).sum()) for table in surprises]
    most = max(alarms)
    return next(i for i, count in enumerate(alarms) if count >= most - 2 * math.sqrt(most)), alarms


def _notes(found: Sequence[Statistic], best: int, alarms: Sequence[int], rate: float, table: Tensor) -> list[str]:
    expected = rate * table.numel()
    said = ", ".join(f"{one.name} {count}" for one, count in zip(found, alarms, strict=True))
    notes = [
        f"{found[best].name} was used: answers that are surprising at a rate of {rate:.2g} were {said} of "
        f"{table.numel()}, and {expected:.0f} would be by chance",
        f"the rate of false alarms was counted on {len(found[best].outsiders)} auxiliary records of each client's own",
    ]
    return notes + ([found[best].note] if found[best].note else [])
