"""Cells of paper 001's tables: each says what it is before it is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from fedspill.dataset import Dataset
from fedspill.metric import Score
from fedspill.reproduce import By, Row, Run, not_runnable, verdict

from .federation import Setup, load
from .outcome import attacked

METRIC = "PSNR of tiles, dB"


TOLERANCE = 2.0  # dB


def row(cell: Mapping[str, Any], by: By, printed: float | None, found: Score, note: str) -> Row:
    judged = verdict(found, printed, tolerance=TOLERANCE)
    return Row(cell, by, METRIC, printed, found.value, found.low, found.high, found.n, found.chance, judged, note)


@dataclass(frozen=True)
class Cell(ABC):
    """One cell of a table: what is done on which data, and what the paper printed for it."""

    by: ClassVar[By] = "fedspill"
    metric: ClassVar[str] = METRIC

    data: str
    cell: Mapping[str, Any]
    printed: float | None = None

    @abstractmethod
    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]: ...


def results(cells: Sequence[Cell], run: Run) -> Iterator[Row]:
    """The rows of all cells whose data are there, and why there is none of the others."""
    for one in cells:
        dataset, why_not = load(one.data, run)
        if dataset is None:
            yield not_runnable({"data": one.data, **one.cell}, one.by, one.metric, one.printed, why_not)
        else:
            yield from one.rows(dataset, run)


@final
@dataclass(frozen=True)
class Attempt(Cell):
    """`cafe` on one federation."""

    setup: Setup = field(default_factory=lambda: Setup("mnist"))

    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]:
        result = attacked(dataset, self.setup.at(run.scale), run)
        cell = {"data": self.data, **self.cell, "by": "cafe"}
        yield row(cell, self.by, self.printed, result.score(), result.note())


def attempt(cell: Mapping[str, Any], printed: float | None, setup: Setup) -> Attempt:
    return Attempt(setup.data, cell, printed, setup)
