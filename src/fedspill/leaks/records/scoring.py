"""Guessed records beside the true ones, field by field, and what can be said of them without any access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NothingToGuess, NoTruth, NotScored
from fedspill.leaks.records.guess import Records
from fedspill.table_schema import TableSchema
from fedspill.trace import Origin, Truth

ENOUGH = 2_000  # records of others that modes and medians are taken from


@dataclass(frozen=True, eq=False)
class FieldMatch:
    """For each true record, which fields of the guessed record matched with it are right; none where there is none."""

    near: Tensor  # (records, fields) bool, numbers nearly so
    same: Tensor  # (records, fields) bool
    guessed: Tensor  # (records,) int64, the guessed record, or -1
    surplus: int  # guessed records beyond the number of true ones


def answered_records(guess: Records) -> list[int]:
    """The origins that the attack answers for."""
    found = [index for index, yes in enumerate(guess.answered.tolist()) if yes]
    if not found:
        why = f": {guess.notes[-1]}" if guess.notes else ""
        raise NothingToGuess(f"the attack does not apply to what was observed{why}")
    return found


def true_schema(truth: Truth) -> TableSchema:
    """How the clients' records are encoded."""
    schema = truth.clients[0].schema if truth.clients else None
    if schema is None:
        raise NoTruth("the clients' data are not at hand, or are no table")
    return schema


def true_records(origin: Origin, truth: Truth) -> Tensor:
    """(records, columns) of one origin, in float64."""
    if not truth.has(origin, "inputs"):
        raise NoTruth(f"the records of {origin.sender} in round {origin.round} are not at hand")
    return truth.get(origin, "inputs").double()


def match_fields(guessed: Tensor, real: Tensor, schema: TableSchema) -> FieldMatch:
    """Guessed records (k, columns) matched one to one with real ones (n, columns), most fields first."""
    if len(guessed) and guessed.shape[1] != real.shape[1]:
        raise NotScored(f"guessed records have {guessed.shape[1]} columns, true ones {real.shape[1]}")
    guessed = schema.nearest(guessed.double())
    pairs = (guessed.repeat_interleave(len(real), 0), real.repeat(len(guessed), 1))
    shape = (len(guessed), len(real), len(schema.fields))
    near = schema.are_near(*pairs).reshape(shape) if len(guessed) else torch.zeros(shape, dtype=torch.bool)
    same = schema.are_same(*pairs).reshape(shape) if len(guessed) else torch.zeros(shape, dtype=torch.bool)
    # A whole record is worth more than any number of fields; among equals the exact fields decide.
    worth = near.sum(2) + same.double().mean(2) + 2 * len(schema.fields) * same.all(2)
    rows, columns = linear_sum_assignment(-worth.double().numpy())
    order = torch.full((len(real),), -1)
    order[torch.from_numpy(columns)] = torch.from_numpy(rows)
    found, there = order.clamp_min(0), (order >= 0)[:, None]
    at = torch.arange(len(real))
    if not len(guessed):
        nothing = torch.zeros(len(real), len(schema.fields), dtype=torch.bool)
        return FieldMatch(nothing, nothing, order, 0)
    return FieldMatch(near[found, at] & there, same[found, at] & there, order, max(0, len(guessed) - len(real)))


def without_access(
    of: Sequence[Origin], real: Sequence[Tensor], truth: Truth, schema: TableSchema
) -> list[list[Tensor]]:
    """What can be returned for each origin by someone who saw no message, by several ways of guessing.

    Modes and medians of the others' records; the same of those with the record's own label, which label attacks tell;
    and records of others drawn at random, which gain by being matched with the true ones. The others are all clients
    but for the origin's own records: more than any outsider has.
    """
    pool = Examples.join(list(truth.clients)).to("cpu")
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))
    pool = pool.take(order[:ENOUGH])
    plain, drawn, by_label = [], [], []
    rng = torch.Generator().manual_seed(1)
    for origin, own in zip(of, real, strict=True):
        free = ~(torch.cdist(pool.x.double(), own) < 1e-6).any(1)
        others = pool.take(free.nonzero().flatten()) if bool(free.any()) else pool
        typical = schema.typical(others.x)
        plain.append(typical.expand(len(own), -1))
        drawn.append(others.x[torch.randint(len(others), (len(own),), generator=rng)].double())
        if truth.has(origin, "input_labels"):
            rows = []
            for label in truth.get(origin, "input_labels").tolist():
                alike = others.x[others.y == label]
                rows.append(schema.typical(alike) if len(alike) else typical)
            by_label.append(torch.stack(rows))
    return [plain, drawn, by_label] if len(by_label) == len(plain) else [plain, drawn]
