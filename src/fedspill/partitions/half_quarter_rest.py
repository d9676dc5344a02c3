"""Every client is one unbalanced batch: half of one class, a quarter of another, the rest of any (LLG, LLBG)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.partition import Partition, log
from fedspill.partitions.drawing import at_least, class_counts, draw_batches, uniform_counts


@dataclass(frozen=True)
class HalfQuarterRest(Partition):
    """`batch` examples: half of a random class a, a quarter of a random class b, the rest uniform over classes.

    LLBG lets a and b coincide, LLG does not (`distinct`). Each client draws from all of the data, so that two may hold
    the same image, unless `disjoint`. Where a class has too few images, `shortage` says what happens: "refuse"; "cap",
    as in LLBG's published sampler: a and b get what there is and the rest grows, so that the batch is no longer half
    and quarter (their Table 3); or "reuse", which keeps the composition. The last two repeat images of a used-up class.
    """

    name = "half-quarter-rest"
    title = "Batches of half one class, a quarter another, the rest any"
    paper = "003 LLBG, after Wainakh et al., User-Level Label Leakage from Gradients, PoPETs 2022"

    batch: int = 128
    distinct: bool = False
    disjoint: bool = False
    shortage: Literal["refuse", "cap", "reuse"] = "refuse"

    def __post_init__(self) -> None:
        at_least(self.name, 1, batch=self.batch)
        if self.shortage not in ("refuse", "cap", "reuse"):
            raise UsageError(f"Partition {self.name!r}: shortage is refuse, cap or reuse, got {self.shortage!r}.")
        if self.disjoint and self.shortage != "refuse":
            raise UsageError(
                f"Partition {self.name!r}: shortage {self.shortage!r} repeats images, which disjoint forbids.",
                remedy="Leave shortage at 'refuse', or drop disjoint.",
            )

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        available = class_counts(examples)
        a, b = self._classes(torch.nonzero(available).flatten(), clients, rng)
        half, quarter = torch.full((clients,), self.batch // 2), torch.full((clients,), self.batch // 4)
        if self.shortage == "cap":
            capped = int(((available[a] < half) | (available[b] < quarter)).sum())
            if capped:
                log.warning("%s: %d of %d clients capped, not half and quarter", self.name, capped, clients)
            half, quarter = half.minimum(available[a]), quarter.minimum(available[b])
        counts = torch.zeros(clients, len(available), dtype=torch.int64)
        counts.scatter_add_(1, a[:, None], half[:, None]).scatter_add_(1, b[:, None], quarter[:, None])
        counts += uniform_counts(self.batch - half - quarter, available, rng)
        instead = "drop disjoint" if self.disjoint else "set shortage to 'cap' or 'reuse'"
        remedy = f"Use a smaller batch, fewer clients or more data, or {instead}."
        reuse, what = self.shortage != "refuse", f"Partition {self.name!r}"
        return draw_batches(examples, counts, rng, what, remedy, disjoint=self.disjoint, reuse=reuse)

    def _classes(self, present: Tensor, clients: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The classes a and b (clients,) of each client, out of those present."""
        if self.distinct and len(present) < 2:
            raise UsageError(f"Partition {self.name!r}: distinct needs two classes, the data have {len(present)}.")
        a = torch.randint(len(present), (clients,), generator=rng)
        if self.distinct:
            b = (a + torch.randint(1, len(present), (clients,), generator=rng)) % len(present)
        else:
            b = torch.randint(len(present), (clients,), generator=rng)
        return present[a], present[b]
