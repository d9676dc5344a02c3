"""Shares out a whole data set: what the clients hold, what the adversary holds, and what is kept for testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import class_counts, draw, require


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds what. Indices of clients refer to the `source` split, those of the adversary to the train split."""

    clients: tuple[Examples, ...]
    auxiliary: Examples  # labelled, equally many of every class
    shadow: Examples  # distributed as the data
    test: Examples  # held by nobody
    client_indices: tuple[Tensor, ...]
    auxiliary_indices: Tensor
    shadow_indices: Tensor
    source: Literal["train", "test"]


def share_out(
    dataset: Dataset,
    partition: Partition,
    clients: int,
    *,
    auxiliary: int = 0,
    shadow: int = 0,
    rng: torch.Generator,
    source: Literal["train", "test"] = "train",
) -> Shares:
    """Sets `auxiliary` examples per class and `shadow` in all aside from the train split, then partitions the rest.

    No example of the adversary is held by a client or tested on (their users may be the same people). With `source`
    "test", clients draw from the test split instead, as LLBG's do, and `test` is what no client drew: possibly nothing.
    """
    if auxiliary < 0 or shadow < 0:
        raise UsageError(f"Expected counts of auxiliary and shadow examples, got {auxiliary} and {shadow}.")
    dataset = partition.prepare(dataset)
    train, everything = dataset.train, torch.arange(len(dataset.train))
    wanted = torch.full((len(dataset.classes),), auxiliary)
    remedy = "Ask for fewer auxiliary examples per class, or load more data."
    require(wanted, class_counts(train, len(wanted)), f"{dataset.name}: the auxiliary set", remedy)
    auxiliary_indices = draw(train, wanted[None], rng)[0].sort().values
    rest = _without(everything, auxiliary_indices)
    if shadow > len(rest):
        raise NotEnoughExamples(
            f"{dataset.name}: the shadow set wants {shadow} examples of all classes, available {len(rest)} "
            f"after {len(auxiliary_indices)} auxiliary ones.",
            remedy="Ask for fewer shadow or auxiliary examples, or load more data.",
        )
    shadow_indices = rest[torch.randperm(len(rest), generator=rng)[:shadow]].sort().values
    rest = _without(rest, shadow_indices)

    split, pool = (train, rest) if source == "train" else (dataset.test, torch.arange(len(dataset.test)))
    client_indices = tuple(pool[share] for share in partition.split(split.take(pool), clients, rng))
    held = torch.cat(client_indices)
    tested = torch.arange(len(dataset.test)) if source == "train" else _without(pool, held)

    assert not torch.isin(auxiliary_indices, shadow_indices).any()
    assert source == "test" or not torch.isin(held, torch.cat([auxiliary_indices, shadow_indices])).any()
    assert source == "train" or not torch.isin(held, tested).any()
    return Shares(
        clients=tuple(split.take(indices) for indices in client_indices),
        auxiliary=train.take(auxiliary_indices),
        shadow=train.take(shadow_indices),
        test=dataset.test.take(tested),
        client_indices=client_indices,
        auxiliary_indices=auxiliary_indices,
        shadow_indices=shadow_indices,
        source=source,
    )


def _without(indices: Tensor, taken: Tensor) -> Tensor:
    return indices[~torch.isin(indices, taken)]
