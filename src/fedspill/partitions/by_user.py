"""Every client holds all the examples of its users, as in LEAF's federated data sets (Caldas et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.errors import NotEnoughExamples, UnknownName, UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least


@dataclass(frozen=True)
class ByUser(Partition):
    """Random users to each client, never half a user: `users` per client, or else all users in even numbers."""

    name = "by-user"
    title = "Whole users to clients"
    paper = "Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"

    users: int | None = None
    column: str | None = None  # of a table: whose values are the users, instead of those that the data bring

    def __post_init__(self) -> None:
        at_least(self.name, 1, users=self.users)

    def prepare(self, dataset: Dataset) -> Dataset:
        """With the values of `column` as users; the column stays an input."""
        if self.column is None:
            return dataset
        if self.column not in dataset.columns:
            grouped = [c for c in dataset.columns if c.startswith(f"{self.column}=")]
            if not grouped:
                raise UnknownName(f"column of {dataset.name}", self.column, dataset.columns)
            places = [dataset.columns.index(name) for name in grouped]
            return _with_users(dataset, lambda x: x[:, places].argmax(1))
        place = dataset.columns.index(self.column)
        known = torch.unique(torch.cat([dataset.train.x[:, place], dataset.test.x[:, place]]))
        return _with_users(dataset, lambda x: torch.searchsorted(known, x[:, place].contiguous()))

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


def _with_users(dataset: Dataset, users: Callable[[Tensor], Tensor]) -> Dataset:
    train, test = (replace(part, users=users(part.x)) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)
