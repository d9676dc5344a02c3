"""The screen: tables, progress bars and errors, with nothing in them that a hostile name could turn into a command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fedspill.plain_text import one_line, plain
from fedspill.progress import Progress, Step

if TYPE_CHECKING:
    from rich.live import Live

Item = TypeVar("Item")
EVERY = 20.0  # seconds between two lines about progress where there is no terminal; a convention


class Screen(Progress):
    """Writes to the terminal; where there is none, progress is a plain line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        if not self._out.is_terminal:
            self._out.width = max(self._out.width, 120)  # a log file does not fold
        self._clock, self._told = clock, clock()

    @property
    def watched(self) -> bool:
        """Whether a person sees the progress."""
        return self._err.is_terminal

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where there is none."""
        return self._out.width if self._out.is_terminal else None

    def live(self) -> Live:
        """A part of the screen that is drawn again and again, and gone at the end."""
        from rich.live import Live

        return Live(console=self._err, refresh_per_second=4, transient=True)

    def say(self, text: str) -> None:
        self._out.print(plain(text), markup=False)

    def error(self, text: str) -> None:
        self._err.print(f"fedspill: {plain(text)}", markup=False, style="red")

    def log(self, text: str) -> None:
        """How far the work is, on stderr, for whoever reads a log: at most a line every 20 seconds."""
        if not self.watched and self._clock() - self._told >= EVERY:
            self._told = self._clock()
            self._err.print(f"fedspill: {plain(text)}", markup=False)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in header:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        self._out.print(table, soft_wrap=False)

    def facts(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            shown = "\n  " + "\n  ".join(map(str, value)) if isinstance(value, list) and value else str(value)
            if value not in ("", [], None):
                self.say(f"{name}: {shown}")

    def progress(self, items: Sequence[Item] | range, what: str) -> Iterator[Any]:
        """Yields the items under a progress bar where a person watches."""
        from rich.progress import track

        bar = track(items, description=what, console=self._err, disable=not self._err.is_terminal, transient=True)
        for place, item in enumerate(bar):
            self.log(f"{what}, {place} of {len(items)}")
            yield item

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Step]:
        """A bar to be set to a position, with a few words beside it, where a person watches."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        told = TextColumn("{task.completed}/{task.total} {task.fields[words]}", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), told, TimeRemainingColumn())
        with Progress(*columns, console=self._err, disable=not self.watched, transient=True) as progress:
            task = progress.add_task(plain(what), total=total, words="")

            def step(done: int, words: str) -> None:
                progress.update(task, completed=done, words=plain(words))
                self.log(f"{what}, {done} of {total}; {words}")

            yield step
