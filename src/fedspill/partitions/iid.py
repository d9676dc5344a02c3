"""Every client holds a random part of the data, as in the i.i.d. runs of FedAvg (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.partition import Partition
from fedspill.partitions.contiguous import blocks
from fedspill.partitions.drawing import at_least


@dataclass(frozen=True)
class IID(Partition):
    """Examples at random and without overlap: `samples` per client, or else all of the data in even parts."""

    name = "iid"
    title = "I.i.d.: every client a random part"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    samples: int | None = None

    def __post_init__(self) -> None:
        at_least(self.name, 1, samples=self.samples)

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        return blocks(torch.randperm(len(examples), generator=rng), clients, self.samples, self.name)
