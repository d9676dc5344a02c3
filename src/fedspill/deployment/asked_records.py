"""Draws the records that passive adversaries ask about; the truth about them is kept apart from what they are told."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.deployment.plan import Plan
from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.partitions.shares import Shares
from fedspill.seeds import generator


@dataclass(frozen=True, eq=False)
class DrawnRecords:
    """The records as the adversary knows them, and the truth: (records, 2) client and sample, or -1 of outsiders."""

    records: AskedRecords
    places: Tensor


def draw_asked_records(plan: Plan, dataset: Dataset, shares: Shares) -> DrawnRecords:
    """Members evenly from all clients, outsiders from the test split; an outsider that equals a held record is none."""
    rng = generator(plan.seed, "asked records")
    wanted, clients = plan.membership, shares.clients
    each = [wanted.members // len(clients) + (i < wanted.members % len(clients)) for i in range(len(clients))]
    chosen = [torch.randperm(len(own), generator=rng)[:most] for own, most in zip(clients, each, strict=True)]
    inside = Examples.join([_plain(own.take(rows)) for own, rows in zip(clients, chosen, strict=True)])
    places = torch.cat([torch.stack([torch.full_like(rows, index), rows], 1) for index, rows in enumerate(chosen)])
    held = {_key(record) for own in (*clients, shares.auxiliary) for record in own.x}
    test = dataset.test
    order = torch.randperm(len(test), generator=rng).tolist()
    strangers = [row for row in order if _key(test.x[row]) not in held][: wanted.others]
    outside = _plain(test.take(torch.tensor(strangers, dtype=torch.int64)))
    records = Examples.join([inside, outside])
    places = torch.cat([places, torch.full((len(outside), 2), -1)])
    mixed = torch.randperm(len(records), generator=rng)
    return DrawnRecords(AskedRecords(records.x[mixed], records.y[mixed]), places[mixed])


def _plain(examples: Examples) -> Examples:
    return Examples(examples.x, examples.y)


def _key(record: Tensor) -> bytes:
    return bytes(record.contiguous().numpy().tobytes())
