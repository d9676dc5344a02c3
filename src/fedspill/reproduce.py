"""Published tables as runnable checks: a Table yields Rows, and each Row holds our figure beside the printed one."""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias

from fedspill.errors import UsageError
from fedspill.metric import Score
from fedspill.registry import Entry, entries, load, papers_folder

Scale: TypeAlias = Literal["quick", "full"]
By: TypeAlias = Literal["paper", "fedspill", "baseline"]
Verdict: TypeAlias = Literal["reproduced", "exceeded", "not reproduced", "not runnable"]

WIDEST = 10  # tolerances that an interval may bridge


@dataclass(frozen=True)
class Row:
    """One cell of a table: the published algorithm, our own, or a trivial baseline, each a row of its own."""

    cell: Mapping[str, Any]
    by: By
    metric: str
    published: float | None
    measured: float | None
    low: float | None
    high: float | None
    n: int
    chance: float | None
    verdict: Verdict
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """The row for people."""
        cell = " ".join(str(value) for value in self.cell.values())
        printed = "-" if self.published is None else f"{self.published:.2f}"
        if self.measured is None:
            return f"  {cell:<28} {self.by:<9} printed {printed:>7}   {self.verdict}: {self.note}"
        interval = f"[{self.low:.2f}, {self.high:.2f}]"
        # A guess reproduces nothing, and where nothing was printed there is nothing to reproduce.
        judged = "" if self.by == "baseline" or self.published is None else self.verdict
        line = (
            f"  {cell:<28} {self.by:<9} printed {printed:>7}   ours {self.measured:7.2f} {interval:<18} "
            f"n={self.n:<4} chance {self.chance:6.2f}   {judged}"
        )
        return line.rstrip()


@dataclass(frozen=True)
class Run:
    """How a table is to be run."""

    scale: Scale = "quick"
    data_dir: Path | None = None
    device: str = "cpu"
    seed: int = 2024  # held out: nothing in the product was tuned on it


class Table(ABC):
    """One published table. Concrete: a frozen dataclass in papers/<paper>/tables.py."""

    name: ClassVar[str]  # "003/1"
    title: ClassVar[str]
    paper: ClassVar[str]

    @abstractmethod
    def rows(self, run: Run) -> Iterator[Row]:
        """What the author writes: the rows, each as soon as it is known."""

    def parts(self, run: Run) -> Sequence[Callable[[], Iterator[Row]]]:
        """The rows in parts that need nothing of each other: an author may say so where a table takes long."""
        return [partial(self.rows, run)]


def rows_side_by_side(chosen: Table, run: Run, workers: int) -> Iterator[Row]:
    """The rows in their order. Parts of the table are computed at once, each worker in a process of its own."""
    parts = len(chosen.parts(run)) if workers > 1 else 1
    if parts == 1:
        yield from chosen.rows(run)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, parts), fresh, initializer=_as_worker) as pool:
        jobs = [pool.submit(_rows_of_part, chosen.name, run, part) for part in range(parts)]
        try:
            for job in jobs:
                yield from job.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _as_worker() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a word; what is there was written


def _rows_of_part(name: str, run: Run, part: int) -> list[Row]:
    return list(table(name).parts(run)[part]())


def table(name: str) -> Table:
    kind = load("papers", name)
    made = kind()
    assert isinstance(made, Table)
    return made


def tables() -> list[Entry]:
    return entries("papers")


def published(paper: str, table_name: str) -> Any:
    """The printed figures, from papers/<paper>/expected.json."""
    path = papers_folder() / paper / "expected.json"
    figures = json.loads(path.read_text(encoding="utf-8"))
    if table_name not in figures:
        raise UsageError(f"{path} has no figures for table {table_name!r}.")
    return figures[table_name]


def measuring(tables_file: str, part: str) -> ModuleType:
    """A module of the folder measure/ beside a paper's tables: papers/ is no package, its folders begin with digits."""
    place = Path(tables_file).with_name("measure")
    name = f"fedspill_papers_{place.parent.name}_measure"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return importlib.import_module(f"{name}.{part}")


def verdict(
    score: Score, printed: float | None, *, tolerance: float, unit: float = 1.0, higher_is_better: bool = True
) -> Verdict:
    """Within the tolerance, or with the printed figure inside our interval, it is reproduced; else better or worse.

    `unit` is how many printed units one unit of the score is, 100 for percent. Fewer than three repetitions give no
    interval worth the name, and no verdict; an interval so wide that it holds a figure ten tolerances away neither.
    """
    if printed is None or score.status != "ok" or score.n < 3:
        return "not runnable"
    gain = (unit * score.value - printed) * (1 if higher_is_better else -1)
    inside = unit * score.low <= printed <= unit * score.high
    if abs(gain) <= tolerance or (inside and abs(gain) <= WIDEST * tolerance):
        return "reproduced"
    if inside:
        return "not runnable"
    return "exceeded" if gain > 0 else "not reproduced"


def not_runnable(cell: Mapping[str, Any], by: By, metric: str, printed: float | None, why: str) -> Row:
    return Row(cell, by, metric, printed, None, None, None, 0, None, "not runnable", why)
