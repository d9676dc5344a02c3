"""The audit's passive membership attack: five statistics, chosen by evidence and calibrated for each client."""

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

_LEVELS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)  # of surprise; the last ones lie beyond what auxiliary records count


@final
@dataclass(frozen=True)
class PassiveMembership(Attack):
    """Says how surprising each record would be, had nobody trained on it.

    A record that a client trained on lies in the row space of what that client sent, however well the model
    generalises. Exact span reads that where a layer has more inputs than there are records; soft span where it has not,
    also of convolutions with few places; the whitened gradient everywhere else. The score is minus log10 of the chance
    that a record nobody trained on would score as high, counted on auxiliary records for each client: above 2, one
    outsider in a hundred is a false alarm.
    Weight decay adds a part to an update that no record made, which exact span does not take out.
    """

    name: ClassVar[str] = "membership"
    title: ClassVar[str] = "Membership by row spaces and whitened gradients"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["model"], knows=["architecture", "asked_records", "aux_data"])
    leak = MEMBERSHIP
    control: ClassVar[Mapping[str, Any] | None] = PASSIVE_CONTROL

    only: str = (
        ""  # one of "exact span", "moved rows", "soft span", "convolution span", "whitened gradient"; empty: any
    )

    def run(self, view: View, rng: torch.Generator) -> Membership:
        observed, asked = read_observed(view), asked_of(view)
        auxiliary: Examples = view.knows("aux_data")
        question = Question.of(Examples(asked.x, asked.y), auxiliary, rng)
        found = statistics(observed, question, self.only)
        if not found or len(question.left_out) < 2:
            what = f"{self.only} cannot be had" if self.only else "no linear layer sees one vector per record"
            raise NotApplicable(f"Membership cannot be read: {what}, or there are too few auxiliary records.")
        surprises = [surprise(one.asked, one.outsiders) for one in found]
        best, evidence = chosen(surprises, len(question.left_out))
        return answers(observed, asked, surprises[best], _notes(found, best, evidence))


def chosen(surprises: Sequence[Tensor], left_out: int) -> tuple[int, list[float]]:
    """Which statistic to believe, and the evidence of each: in standard errors, how many more answers surprise.

    Were nobody's records among those asked about, a share 10^-s of answers would have a surprise of s or more, give or
    take counting errors and those of a tail that was counted on `left_out` records. The largest excess over all levels
    is the evidence (after Donoho and Jin 2004). The sharpest statistic, which comes first, is kept unless another has
    surely more: by over two standard errors of what that other one counted.
    """
    found = [max(_excess(table, level, left_out) for level in _LEVELS) for table in surprises]
    most, doubt = max(found)
    return next(i for i, (excess, _) in enumerate(found) if excess >= most - 2 * doubt), [one for one, _ in found]


def _excess(table: Tensor, level: float, left_out: int) -> tuple[float, float]:
    """How many more answers than by chance, and how far counting them may be off, in standard errors under chance."""
    rate = 10**-level
    expected, counted = rate * table.numel(), int((table >= level).sum())
    error = math.sqrt(expected + expected**2 / (rate * (left_out + 1)))
    return (counted - expected) / error, max(1.0, math.sqrt(counted) / error)


def _notes(found: Sequence[Statistic], best: int, evidence: Sequence[float]) -> list[str]:
    said = ", ".join(f"{one.name} {excess:.1f}" for one, excess in zip(found, evidence, strict=True))
    many = len(found[best].outsiders)
    notes = [
        f"{found[best].name} was used; standard errors by which surprising answers exceed chance: {said}",
        f"false alarms were counted on {many} auxiliary records, for each client by itself: down to a rate of "
        f"{counted_rate(many):.2g}",
    ]
    return notes + ([found[best].note] if found[best].note else [])
