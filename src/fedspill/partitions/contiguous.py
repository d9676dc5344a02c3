"""Every client holds a block of the data in their own order, as in AAI* (Active Attribute Inference) on CelebA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least


@dataclass(frozen=True)
class Contiguous(Partition):
    """Consecutive blocks, nothing shuffled: `samples` per client, or else all of the data in even parts."""

    name = "contiguous"
    title = "Blocks of the data in their own order"
    paper = "004 AAI*: ten clients as consecutive blocks of CelebA"

    samples: int | None = None

    def __post_init__(self) -> None:
        at_least(self.name, 1, samples=self.samples)

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        return blocks(torch.arange(len(examples)), clients, self.samples, self.name)


def blocks(order: Tensor, clients: int, samples: int | None, what: str) -> list[Tensor]:
    """Cuts order (n,) into consecutive parts of `samples`, or into even parts that differ by at most one."""
    wanted = clients * (samples or 1)
    if wanted > len(order):
        raise NotEnoughExamples(
            f"Partition {what!r} lacks examples. All classes: wanted {wanted} for {clients} clients, "
            f"available {len(order)}.",
            remedy="Use fewer clients, fewer samples, or more data.",
        )
    return list(order[: wanted if samples else None].tensor_split(clients))
