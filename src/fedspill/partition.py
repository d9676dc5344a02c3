"""Partition: which examples each client holds, and which the adversary holds."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.errors import NotEnoughExamples, UsageError

log = logging.getLogger("fedspill.partitions")


class Partition(ABC):
    """One way to share examples out. Concrete: a frozen dataclass, its fields are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""

    def prepare(self, dataset: Dataset) -> Dataset:
        """The data set as this partition wants it; most take it as it is."""
        return dataset

    @abstractmethod
    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        """What the author writes: for each client the indices (n_i,) of its examples."""

    @final
    def split(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        """`assign`, checked: one non-empty share per client, indices that exist; what each class offers is logged."""
        if clients < 1:
            raise UsageError(f"Expected at least one client, got {clients}.")
        per_class = " ".join(map(str, torch.bincount(examples.y).tolist()))
        log.info("%s: %d clients from %d examples; per class: %s", self.name, clients, len(examples), per_class)
        if len(examples) == 0:
            raise NotEnoughExamples(
                f"Partition {self.name!r} is given no examples at all: {clients} clients want some, 0 are available.",
                remedy="Load more data, or set fewer examples aside for the adversary.",
            )
        shares = self.assign(examples, clients, rng)
        if len(shares) != clients:
            raise UsageError(f"Partition {self.name!r} makes {len(shares)} clients, the plan asks for {clients}.")
        for index, share in enumerate(shares):
            if share.ndim != 1 or share.dtype != torch.int64:
                raise UsageError(
                    f"Partition {self.name!r} gives client {index} {share.dtype} of shape {tuple(share.shape)}.",
                    remedy="Return indices: int64 of shape (n,).",
                )
            if len(share) == 0:
                raise NotEnoughExamples(
                    f"Partition {self.name!r} leaves client {index} without examples.",
                    remedy="Use fewer clients, more data, or a less skewed setting.",
                )
            if not 0 <= int(share.min()) <= int(share.max()) < len(examples):
                raise UsageError(f"Partition {self.name!r} gives client {index} an example that does not exist.")
        return shares
