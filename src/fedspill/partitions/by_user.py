"""Every client holds all the examples of its users, as in LEAF's federated data sets (Caldas et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least


@dataclass(frozen=True)
class ByUser(Partition):
    """Random users to each client, never half a user: `users` per client, or else all users in even numbers."""

    name = "by-user"
    title = "Whole users to clients"
    paper = "Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"

    users: int | None = None

    def __post_init__(self) -> None:
        at_least(self.name, 1, users=self.users)

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        if examples.users is None:
            raise UsageError(
                f"Partition {self.name!r} needs data with users; these examples have none.",
                remedy="Use another data set, or partition 'iid'.",
            )
        known, user = torch.unique(examples.users.cpu(), return_inverse=True)
        wanted = clients * (self.users or 1)
        if wanted > len(known):
            raise NotEnoughExamples(
                f"Partition {self.name!r} lacks users: wanted {wanted} for {clients} clients, available {len(known)}.",
                remedy="Use fewer clients, fewer users per client, or more data.",
            )
        chosen = torch.randperm(len(known), generator=rng)[: wanted if self.users else None]
        client = torch.full((len(known),), clients)  # one past the last client: held by nobody
        client[chosen] = torch.cat([torch.full((len(u),), c) for c, u in enumerate(chosen.tensor_split(clients))])
        holder = client[user]
        sizes = torch.bincount(holder, minlength=clients + 1).tolist()
        return list(torch.split(torch.argsort(holder, stable=True), sizes)[:clients])
