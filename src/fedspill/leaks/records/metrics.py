"""Metrics for records of a table: fields right, whole records, and how far certificates can be trusted.

Guessed records are matched one to one with the true ones. Chance is the best of three guesses without access: the mode
or median of every column, those of the record's class, and records of others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.intervals import Proof
from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.scoring import (
    FieldMatch,
    answered_records,
    match_fields,
    true_records,
    true_schema,
    without_access,
)
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.trace import Truth


class OfRecords(Metric[Records], ABC):
    """A share of an origin's true records or fields; guesses beyond the true number count against it."""

    guesses = Records
    perfect: ClassVar[float] = 1.0

    @abstractmethod
    def right(self, match: FieldMatch) -> Tensor:
        """(records, ...) what is right of each true record, as a mark for each trial."""

    def measure(self, guess: Records, truth: Truth) -> Measured:
        origins, schema = answered_records(guess), true_schema(truth)
        of = [guess.of[index] for index in origins]
        real = [true_records(origin, truth) for origin in of]

        def shares(guessed: list[Tensor]) -> tuple[Tensor, Tensor]:
            values, trials = [], []
            for rows, own in zip(guessed, real, strict=True):
                match = match_fields(rows, own, schema)
                marks = self.right(match).double()
                values.append(marks.mean() * len(own) / (len(own) + match.surplus))
                trials.append(marks.numel())
            return torch.stack(values), torch.tensor(trials)

        values, trials = shares([guess.rows[index] for index in origins])
        tried = [shares(rows)[0] for rows in without_access(of, real, truth, schema)]
        chance = max(tried, key=lambda one: float(one.mean()))
        return Measured(values, chance, trials, *clusters_of(of))


@final
@dataclass(frozen=True)
class RecordFields(OfRecords):
    """Share of fields that are right: the same category, or a number within 0.319 deviations, as TabLeak counts."""

    name: ClassVar[str] = "record-fields"
    title: ClassVar[str] = "Fields of records read right"
    paper: ClassVar[str] = "Vero et al., TabLeak, 2023"

    def right(self, match: FieldMatch) -> Tensor:
        return match.near

    def measure(self, guess: Records, truth: Truth) -> Measured:
        return replace(super().measure(guess, truth), proof=_proof(guess, truth))


@final
@dataclass(frozen=True)
class RecordsWhole(OfRecords):
    """Share of records of which every field is the same, numbers to their last digit."""

    name: ClassVar[str] = "records-whole"
    title: ClassVar[str] = "Whole records read exactly"
    paper: ClassVar[str] = "fedspill"

    def right(self, match: FieldMatch) -> Tensor:
        return match.same.all(1)


@final
@dataclass(frozen=True)
class CertifiedRecords(Metric[Records]):
    """Share of the records that the attack vouches for which are whole and right; chance is that of all it returned."""

    name: ClassVar[str] = "certified-records"
    title: ClassVar[str] = "Certified records that are right"
    paper: ClassVar[str] = "fedspill"
    guesses = Records
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Records, truth: Truth) -> Measured:
        values, chance, trials, of = [], [], [], []
        for index in answered_records(guess):
            right, certified = _right(guess, index, truth), guess.certified[index]
            if bool(certified.any()):
                values.append(right[certified].double().mean())
                chance.append(right.double().mean())
                trials.append(int(certified.sum()))
                of.append(guess.of[index])
        if not values:
            raise NotScored("the attack vouches for no record")
        return Measured(torch.stack(values), torch.stack(chance), torch.tensor(trials), *clusters_of(of))


def _right(guess: Records, index: int, truth: Truth) -> Tensor:
    """(k,) which of the records guessed of one origin are whole and right."""
    match = match_fields(guess.rows[index], true_records(guess.of[index], truth), true_schema(truth))
    right = torch.zeros(len(guess.rows[index]), dtype=torch.bool)
    right[match.guessed[match.same.all(1)]] = True
    return right


def _proof(guess: Records, truth: Truth) -> Proof:
    """How many of the recorded records the attack vouches for and has right, and how many it has wrong."""
    proven = refuted = total = 0
    for index in answered_records(guess):
        right, certified = _right(guess, index, truth), guess.certified[index]
        proven += int((right & certified).sum())
        refuted += int((~right & certified).sum())
        total += len(true_records(guess.of[index], truth))
    return Proof(proven, total, refuted)
