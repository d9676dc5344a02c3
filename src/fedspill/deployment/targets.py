"""Draws the records that a malicious server looks for, and keeps the truth about them apart from what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.deployment.plan import Plan
from fedspill.errors import UnknownName, UsageError
from fedspill.planting.targets import Targets
from fedspill.seeds import generator


@dataclass(frozen=True, eq=False)
class Drawn:
    """The targets as the adversary knows them, and the truth: attribute, membership and holder, each (targets,).

    The holder is the client that has the record, -1 where none has.
    """

    targets: Targets
    values: Tensor
    members: Tensor
    holders: Tensor


def draw_targets(plan: Plan, dataset: Dataset, clients: Sequence[Examples]) -> Drawn:
    """Members from the clients' data, others from the test split, half with the attribute and half without."""
    rng = generator(plan.seed, "targets")
    column, masked = attribute_columns(plan.targets.attribute, dataset)
    pools = (clients, [dataset.test])
    found = [
        _records(pool, column, wanted, rng)
        for pool, wanted in zip(pools, (plan.targets.members, plan.targets.others), strict=True)
    ]
    records = Examples.join([Examples(part.x, part.y) for part, _ in found])
    order = torch.randperm(len(records), generator=rng)
    (inside, holders), (outside, _) = found
    holders = torch.cat([holders, torch.full((len(outside),), -1)])[order]
    members = (torch.arange(len(records)) < len(inside))[order].long()
    records = records.take(order)
    flat = records.x.flatten(1)
    values = torch.zeros(len(records), dtype=torch.int64) if column is None else (flat[:, column] > 0.5).long()
    x = flat.clone()
    x[:, list(masked)] = 0
    first = min(plan.federation.rounds, plan.targets.after)
    return Drawn(Targets(x.reshape(records.x.shape), records.y, first, column, masked), values, members, holders)


def attribute_columns(attribute: str | None, dataset: Dataset) -> tuple[int | None, tuple[int, ...]]:
    """The attribute's column, and all columns that encode it."""
    if attribute is None:
        return None, ()
    if attribute not in dataset.columns:
        raise UnknownName(f"column of {dataset.name}", attribute, dataset.columns)
    column = dataset.columns.index(attribute)
    if not bool(((dataset.train.x[:, column] == 0) | (dataset.train.x[:, column] == 1)).all()):
        raise UsageError(
            f"The attribute {attribute!r} of {dataset.name} is not yes or no: it has values beside 0 and 1."
        )
    masked = next((group for group in dataset.groups if column in group), (column,))
    return column, tuple(masked)


def _records(
    pool: Sequence[Examples], column: int | None, wanted: int, rng: torch.Generator
) -> tuple[Examples, Tensor]:
    """At most `wanted` of all records of the pool, evenly with and without the attribute, and whose each is."""
    sizes = [len(part) for part in pool]
    ends = torch.tensor(sizes).cumsum(0)
    if column is None:
        chosen = torch.randperm(sum(sizes), generator=rng)[:wanted]
    else:
        values = torch.cat([part.x.flatten(1)[:, column] for part in pool]) > 0.5
        halves = [(values == bool(value)).nonzero().flatten() for value in (0, 1)]
        picked = [half[torch.randperm(len(half), generator=rng)[: wanted // 2]] for half in halves]
        chosen = torch.cat(picked)
    taken, holders = [], []
    for index in chosen.tolist():
        holder = int(torch.searchsorted(ends, index, right=True))
        row = index - int(ends[holder]) + sizes[holder]
        holders.append(holder)
        taken.append(pool[holder].take(torch.tensor([row])))
    none = torch.zeros(0, dtype=torch.int64)
    return Examples.join(taken) if taken else pool[0].take(none), torch.tensor(holders, dtype=torch.int64)
