"""Every client is one batch with labels uniform over the classes, as in LLBG's Table 4."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least, class_counts, draw_batches, uniform_counts


@dataclass(frozen=True)
class UniformBatch(Partition):
    """`batch` examples with i.i.d. labels, uniform over the classes whatever their frequency in the data.

    Each client draws from all of the data, so that two may hold the same image, unless `disjoint`. With `reuse` a
    class with too few images repeats them.
    """

    name = "uniform-batch"
    title = "Batches with labels uniform over the classes"
    paper = "003 LLBG, Table 4"

    batch: int = 100
    disjoint: bool = False
    reuse: bool = False

    def __post_init__(self) -> None:
        at_least(self.name, 1, batch=self.batch)
        if self.disjoint and self.reuse:
            raise UsageError(f"Partition {self.name!r}: reuse repeats images, which disjoint forbids.")

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        available = class_counts(examples)
        counts = uniform_counts(torch.full((clients,), self.batch), available, rng)
        instead = "drop disjoint" if self.disjoint else "set reuse"
        what, remedy = f"Partition {self.name!r}", f"Use a smaller batch, fewer clients or more data, or {instead}."
        return draw_batches(examples, counts, rng, what, remedy, disjoint=self.disjoint, reuse=self.reuse)
