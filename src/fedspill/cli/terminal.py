"""The screen: tables, progress bars and errors, with nothing in them that a hostile name could turn into a command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fedspill.plain_text import one_line, plain
from fedspill.progress import Progress, Step

if TYPE_CHECKING:
    from rich.live import Live

Item = TypeVar("Item")


class Screen(Progress):
    """Writes to the terminal; quiet about progress when there is none."""

    def __init__(self) -> None:
        from rich.console import Console

        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        if not self._out.is_terminal:
            self._out.width = max(self._out.width, 120)  # a log file does not fold

    @property
    def watched(self) -> bool:
        """Whether a person sees the progress."""
        return self._err.is_terminal

    def live(self) -> Live:
        """A part of the screen that is drawn again and again, and gone at the end."""
        from rich.live import Live

        return Live(console=self._err, refresh_per_second=4, transient=True)

    def say(self, text: str) -> None:
        self._out.print(plain(text), markup=False)

    def error(self, text: str) -> None:
        self._err.print(f"fedspill: {plain(text)}", markup=False, style="red")

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

        yield from track(items, description=what, console=self._err, disable=not self._err.is_terminal, transient=True)

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Step]:
        """A bar to be set to a position, with a few words beside it, where a person watches."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        told = TextColumn("{task.completed}/{task.total} {task.fields[words]}", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), told, TimeRemainingColumn())
        with Progress(*columns, console=self._err, disable=not self.watched, transient=True) as progress:
            task = progress.add_task(plain(what), total=total, words="")
            yield lambda done, words: progress.update(task, completed=done, words=plain(words))
