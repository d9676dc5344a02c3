"""What a person at a terminal sees of a running audit: the matrix, filling up. Elsewhere, a line now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedspill.attack_run import Outcome
from fedspill.audit.jobs import AttackJob
from fedspill.audit.result_from_store import Cell
from fedspill.audit.watcher import Watcher
from fedspill.audit.worker_pool import Done
from fedspill.cli.terminal import Screen
from fedspill.plain_text import plain


@final
class LiveMatrix(Watcher):
    """A live table, one row per attack and one column per adversary."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._cells: Sequence[Cell] = ()
        self._shown: dict[str, str] = {}
        self._jobs = 0
        self._done = 0
        self._last = ""
        self._live: Live | None = None

    def say(self, text: str) -> None:
        self._screen.say(text)

    def began(self, cells: Sequence[Cell], jobs: int) -> None:
        self._cells, self._jobs = cells, jobs
        self._shown = {cell.pair.id: "-" if cell.lacks else "..." for cell in cells}
        if self._screen.watched:
            self._live = self._screen.live()
            self._live.start()
            self._draw()

    def more(self, jobs: int) -> None:
        self._jobs += jobs

    def done(self, done: Done) -> None:
        self._done += 1
        self._last = done.job.title()
        if isinstance(done.job, AttackJob) and not done.job.setting.chosen:
            self._shown[done.job.pair.id] = _short(done)
        self._draw()
        self._screen.log(f"{self._done} of {self._jobs} units; {self._last}")

    def ended(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Table:
        adversaries = list(dict.fromkeys(cell.pair.adversary for cell in self._cells))
        title = f"{self._done} of {self._jobs} units; {plain(self._last)}"
        table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
        for column in ("attack", *adversaries):
            table.add_column(Text(plain(column)), no_wrap=True)
        rows: dict[str, dict[str, str]] = {}
        for cell in self._cells:
            attack = cell.pair.id.rpartition("/")[0]
            rows.setdefault(attack, {})[cell.pair.adversary] = self._shown[cell.pair.id]
        for attack, shown in rows.items():
            table.add_row(Text(plain(attack)), *(Text(shown.get(name, "")) for name in adversaries))
        return table


def _short(done: Done) -> str:
    outcome = done.outcome
    if not isinstance(outcome, Outcome) or outcome.status != "ok":
        return outcome.status
    values = outcome.measured[outcome.metric].values
    return f"{sum(values) / len(values):.2f}"
