"""Every client has a stated class composition: the clients of Decaf's Tables III to VII."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.partition import Partition
from fedspill.partitions.drawing import at_least, class_counts, draw, require

Rows: TypeAlias = tuple[tuple[int, ...], ...]
PublishedTable: TypeAlias = Literal["mnist", "cifar10", "fer2013", "skin"]

# The published percentages as integers, one row per client, one column per class in the data set's own label order.
TABLES: dict[PublishedTable, Rows] = {
    "mnist": (  # Tables III and IV (Fashion-MNIST): units of 1/120
        (12, 12, 12, 12, 12, 12, 12, 12, 12, 12),
        (8, 12, 10, 9, 16, 19, 7, 12, 15, 12),
        (18, 19, 9, 6, 18, 15, 16, 8, 5, 6),
        (16, 4, 3, 22, 12, 16, 7, 2, 10, 28),
        (6, 22, 0, 10, 12, 15, 30, 10, 8, 7),
        (8, 13, 18, 6, 20, 0, 15, 10, 30, 0),
        (20, 9, 16, 0, 9, 30, 0, 0, 32, 4),
        (0, 0, 40, 6, 0, 0, 32, 4, 0, 38),
        (0, 0, 0, 50, 0, 10, 0, 0, 0, 60),
        (0, 0, 0, 0, 0, 0, 0, 120, 0, 0),
    ),
    "cifar10": (  # Table V: units of 1/100
        (10, 10, 10, 10, 10, 10, 10, 10, 10, 10),
        (6, 10, 8, 7, 14, 17, 5, 10, 13, 10),
        (16, 17, 7, 4, 16, 13, 14, 6, 3, 4),
        (14, 2, 1, 20, 10, 14, 5, 2, 8, 24),
        (4, 18, 0, 8, 10, 13, 28, 8, 6, 5),
        (6, 11, 16, 4, 16, 0, 13, 8, 26, 0),
        (18, 7, 14, 0, 7, 24, 0, 0, 26, 4),
        (0, 0, 34, 4, 0, 0, 26, 2, 0, 34),
        (0, 0, 0, 40, 0, 10, 0, 0, 0, 50),
        (0, 0, 0, 0, 0, 0, 0, 100, 0, 0),
    ),
    "fer2013": (  # Table VI: every row in a unit of its own
        (1, 1, 1, 1, 1, 1, 1),
        (10, 3, 8, 2, 14, 7, 8),
        (6, 9, 16, 28, 14, 23, 20),
        (40, 0, 10, 30, 12, 15, 30),
        (0, 9, 38, 0, 30, 35, 0),
        (20, 0, 35, 0, 18, 0, 0),
        (0, 0, 0, 0, 0, 0, 1),
    ),
    "skin": (  # Table VII: every row in a unit of its own; the printed 16% of client 1 is taken as 105/658
        (1, 1, 1, 1, 1, 1, 1),
        (100, 135, 78, 105, 80, 95, 65),
        (16, 14, 26, 20, 22, 25, 33),
        (26, 0, 50, 14, 10, 10, 20),
        (10, 18, 0, 30, 0, 16, 36),
        (0, 26, 28, 0, 60, 0, 24),
        (0, 1, 0, 0, 0, 0, 0),
    ),
}


@dataclass(frozen=True)
class Compositions(Partition):
    """One client per row of `table`, a published one or rows of integers, one column per class.

    A client holds its row times `unit` examples; with `samples` it holds that many in the row's proportions instead,
    rounded by largest remainder. The rows of "fer2013" and "skin" have no common unit, so these need `samples`.
    With `reuse` a class that runs out starts over: some examples are then held by several clients. The paper states
    neither sizes nor reuse; taken as counts, its skin rows want more dermatofibroma images than HAM10000 has.
    """

    name = "compositions"
    title = "Stated class compositions, one per client"
    paper = "000 Decaf, Tables III to VII"

    table: PublishedTable | Rows = "mnist"
    unit: int = 1
    samples: int | None = None
    reuse: bool = False

    def __post_init__(self) -> None:
        at_least(self.name, 1, unit=self.unit, samples=self.samples)
        if self.samples is not None and self.unit != 1:
            raise UsageError(f"Partition {self.name!r}: give unit or samples, not both.")
        if self.samples is None and self.table in ("fer2013", "skin"):
            raise UsageError(
                f"Partition {self.name!r}: the rows of table {self.table!r} have no common unit.",
                remedy="Give samples, the examples per client.",
            )
        rows = self.rows
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise UsageError(f"Partition {self.name!r}: table needs rows of one length, one integer per class.")
        for client, row in enumerate(rows):
            if min(row) < 0 or sum(row) == 0:
                raise UsageError(f"Partition {self.name!r}: row {client} of table must be counts, not all 0: {row}.")

    @property
    def rows(self) -> Rows:
        if not isinstance(self.table, str):
            return self.table
        if self.table not in TABLES:
            raise UsageError(f"Partition {self.name!r} knows no table {self.table!r}, only {', '.join(TABLES)}.")
        return TABLES[self.table]

    def assign(self, examples: Examples, clients: int, rng: torch.Generator) -> list[Tensor]:
        rows = torch.tensor(self.rows)
        available = class_counts(examples, rows.shape[1])
        if len(available) > rows.shape[1]:
            raise UsageError(
                f"Partition {self.name!r}: the table has {rows.shape[1]} classes, the data {len(available)}.",
                remedy="Use a table with one column per class.",
            )
        if len(rows) != clients:
            raise UsageError(
                f"Partition {self.name!r}: the table has {len(rows)} rows, the plan asks for {clients} clients.",
                remedy=f"Ask for {len(rows)} clients.",
            )
        counts = rows * self.unit if self.samples is None else scale(rows, self.samples)
        lost = torch.nonzero((rows > 0) & (counts == 0)).tolist()
        if lost:
            client, label = lost[0]
            raise UsageError(
                f"Partition {self.name!r}: {self.samples} samples leave client {client} nothing of class {label}.",
                remedy=f"Raise samples: that class is {rows[client, label]} in {rows[client].sum()} of its row.",
            )
        wanted = counts.sum(0)
        remedy = self._remedy(wanted, available)
        require(wanted, available, f"Partition {self.name!r}", remedy, reuse=self.reuse)
        return draw(examples, counts, rng, reuse=self.reuse)

    def _remedy(self, wanted: Tensor, available: Tensor) -> str:
        if self.reuse:
            return "Use data that have every class of the table."
        option, size = ("unit to", self.unit) if self.samples is None else ("samples to about", self.samples)
        fits = int((size * available[wanted > 0] // wanted[wanted > 0]).min())
        return f"Lower {option} {fits}, set reuse, or use more data." if fits else "Set reuse, or use more data."


def scale(rows: Tensor, samples: int) -> Tensor:
    """Rows (clients, classes) of integers in the same proportions, each summing to `samples`, by largest remainder.

    Of equal remainders the lower class is rounded up.
    """
    totals = rows.sum(1, keepdim=True)
    counts = rows * samples // totals
    ranks = (rows * samples % totals).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return counts + (ranks < samples - counts.sum(1, keepdim=True))
