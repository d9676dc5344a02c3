"""Every client has a few main labels and a trace of others: the clients of Class Sniffing and Quantity Inference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least, class_counts, draw, require


@dataclass(frozen=True)
class MainLabels(Partition):
    """`low` to `high` random main labels with `per_label` examples each, and `minor` others with `minor_samples`.

    The paper has 3 to 5 main labels and "a small number of other labels"; it states no sizes, so those are ours.
    With `reuse` a class that runs out starts over.
    """

    name = "main-labels"
    title = "A few main labels per client, little of others"
    paper = "002 Eavesdrop the Composition Proportion of Training Labels in Federated Learning"

    low: int = 3
    high: int = 5
    per_label: int = 50
    minor: int = 2
    minor_samples: int = 5
    reuse: bool = False

    def __post_init__(self) -> None:
        at_least(self.name, 1, low=self.low, per_label=self.per_label, minor_samples=self.minor_samples)
        at_least(self.name, 0, minor=self.minor)
        if self.high < self.low:
            raise UsageError(f"Partition {self.name!r}: high must not be below low, got {self.low} to {self.high}.")
        if self.minor and self.minor_samples >= self.per_label:
            raise UsageError(
                f"Partition {self.name!r}: other labels must have fewer examples than main ones, got minor_samples "
                f"{self.minor_samples} and per_label {self.per_label}."
            )

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        available = class_counts(examples)
        present = torch.nonzero(available).flatten()
        if self.high + self.minor > len(present):
            raise UsageError(
                f"Partition {self.name!r} wants up to {self.high} main and {self.minor} other labels, "
                f"the data have {len(present)}.",
                remedy="Lower high or minor.",
            )
        main = torch.randint(self.low, self.high + 1, (clients, 1), generator=rng)
        rank = torch.rand(clients, len(present), generator=rng).argsort(dim=1)
        counts = torch.zeros(clients, len(available), dtype=torch.int64)
        other = (rank >= main) & (rank < main + self.minor)
        counts[:, present] = self.per_label * (rank < main) + self.minor_samples * other
        remedy = "Lower per_label, use fewer clients or more data, or set reuse."
        require(counts.sum(0), available, f"Partition {self.name!r}", remedy, reuse=self.reuse)
        return draw(examples, counts, rng, reuse=self.reuse)
