"""How many clients of a round own each label: the truth that presence and quantity are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.errors import NoTruth, NotScored
from fedspill.trace import Origin, Truth

# "main": at least half as many samples as of the client's commonest label; "any": at least one sample.
Owned: TypeAlias = Literal["main", "any"]


def true_owners(of: Sequence[Origin], truth: Truth, me: str | None, owned: Owned, classes: int) -> Tensor:
    """(origins, classes) how many clients other than `me` own each label."""
    if not of:
        raise NotScored("nothing to score")
    rows = []
    for origin in of:
        if not truth.has(origin, "label_counts_by_client") or not truth.has(origin, "clients"):
            raise NoTruth(f"nothing is known of the clients of round {origin.round}")
        counts, clients = truth.get(origin, "label_counts_by_client"), truth.get(origin, "clients")
        if counts.shape[1] != classes:
            raise NotScored(f"the guess speaks of {classes} classes, there are {counts.shape[1]}")
        others = counts[torch.tensor([f"client:{index}" != me for index in clients.tolist()], dtype=torch.bool)]
        least = others.amax(1, keepdim=True) / 2 if owned == "main" else torch.full((len(others), 1), 0.5)
        rows.append((others >= least).sum(0) if len(others) else torch.zeros(classes, dtype=torch.int64))
    return torch.stack(rows)
