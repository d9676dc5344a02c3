"""The first screen as plain text, for terminals: at most 40 lines of 100 columns for an audit of eight leaks.

In a terminal it is as wide as that is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedspill.audit.result import AuditResult
from fedspill.report.clean import cleaned
from fedspill.report.first_screen import FirstScreen, ShownCell, first_screen
from fedspill.report.readings import TOO_FEW, ShownTable

WIDTH = 100  # where nobody says how wide the terminal is
NARROWEST, WIDEST = 72, 120  # narrower, columns of the table fall apart; wider, lines are hard to read: conventions
FIRST = 28  # columns of the leaks' names
GAP = 2
MOST_ADVICE = 2  # pieces of it that a terminal shows
CLIENTS = 6  # rows of a reading that a terminal shows


def fitting(width: int | None) -> int:
    """How wide the screen is to be drawn in a terminal of that width; None where there is no terminal."""
    return WIDTH if width is None else min(max(width, NARROWEST), WIDEST)


def render(result: AuditResult, width: int = WIDTH) -> str:
    return "\n".join(lines(result, width)) + "\n"


def lines(result: AuditResult, width: int = WIDTH) -> list[str]:
    """The screen, line by line."""
    result = cleaned(result)
    screen = first_screen(result)
    said = [*_filled(screen.sentence.upper() if not screen.rows else screen.sentence, width)]
    for line in screen.banner:
        said += _filled(f"!! CONFIGURED DEFENSE IS OFF: {line}", width, "   ")
    for line in screen.violated:
        said += _filled(f"!! CLAIM OF PRIVACY IS VIOLATED: {line}.", width, "   ")
    for line in screen.turned_away:
        said += _filled(f"! FALSE ALARMS: {line}.", width, "  ")
    if screen.verdict:
        said += _filled(f"[{screen.severity}] {screen.verdict}. {screen.beside}", width)
    said += _filled(f"{screen.about} {screen.defenses}", width)
    said += _filled(f"About the data: {screen.data_note}", width) if screen.data_note else []
    for line in screen.claims:
        said += _filled(f"{line}.", width)
    said += ["", *_table(screen, width), ""]
    said += _readings(screen, width)
    for number, advice in enumerate(screen.advice[:MOST_ADVICE], 1):
        said += _filled(f"{number}. {advice.title}. {advice.effect}. {advice.cost.partition('. ')[0]}.", width, "   ")
    said += _filled(screen.unhelped, width) if screen.unhelped else []
    said += _filled(screen.in_vain, width) if screen.in_vain else []
    said += _filled(screen.left_out, width) if screen.left_out else []
    said += _filled(f"How sure: {'; '.join(screen.sure)}.", width)
    for entry in result.accepted:
        if entry.state != "in force":
            said += _filled(f"Accept entry {entry.id!r} ({entry.until}) accepts nothing: {entry.state}.", width)
    return said


def _table(screen: FirstScreen, width: int) -> list[str]:
    """Rows with a figure in columns; rows without any in one line each, since all they have is a reason."""
    columns = [who for who, _ in screen.columns]
    room = (width - FIRST) // max(len(columns), 1) - GAP
    said = _row("", columns, room) if screen.tested else []
    for row in screen.tested:
        said += _row(row.title, [_cell(cell) for cell in row.cells], room)
    for row in screen.untested:
        said += _filled(f"{row.title}: {row.reason}", width, "  ")
    return said


def _row(title: str, cells: Sequence[str], room: int) -> list[str]:
    parts = [textwrap.wrap(title, FIRST - GAP) or [""]]
    parts += [textwrap.wrap(cell, max(room, 8)) or [""] for cell in cells]
    height = max(map(len, parts))
    widths = [FIRST - GAP, *([room] * len(cells))]
    rows = []
    for index in range(height):
        words = [part[index] if index < len(part) else "" for part in parts]
        rows.append((" " * GAP).join(word.ljust(size) for word, size in zip(words, widths, strict=True)).rstrip())
    return rows


def _cell(cell: ShownCell) -> str:
    if cell.kind in ("cannot", "not-tested", "not-found", "undecided", "errored"):
        return cell.tag
    short = cell.main.split(" of 100")[0] + " of 100" if " of 100" in cell.main else cell.main
    if cell.kind == "read":
        return cell.tag  # in words below the table
    if not short:
        return f"{cell.tag}, by {cell.by}" if cell.by else f"{cell.tag} ({cell.sub})"
    return f"{cell.tag} {short} ({cell.sub.replace('by guessing', 'guessing')})"


def _readings(screen: FirstScreen, width: int) -> list[str]:
    """What was read, leak by leak, and of the first table that speaks of clients the first rows."""
    if not screen.readings:
        return []
    said = ["What is read, and how far that can be believed:"]
    for one in screen.readings:
        said += _filled(f"- {one.summary}, read by {one.who} ({one.attack}): {one.sure}.", width, "  ")
    said += _filled(screen.twin, width) if screen.twin else []
    table = next((table for one in screen.readings for table in one.tables if table.columns[0] == "client"), None)
    if table is not None:
        said.append(f"{table.title} (all in the report):")
        said += [_cut("  " + ", ".join(_pairs(table, row)), width) for row in table.rows[:CLIENTS]]
    return [*said, ""]


def _pairs(table: ShownTable, row: Sequence[str]) -> list[str]:
    """A row in words; what is too small to be told is left out."""
    told = [(name, value) for name, value in zip(table.columns, row, strict=True) if value != TOO_FEW]
    return [row[0], *(f"{name.removesuffix(' %')} {value}{' %' * name.endswith(' %')}" for name, value in told[1:])]


def _filled(text: str, width: int, indent: str = "") -> list[str]:
    # Names such as secure-aggregation stay whole: people copy them.
    return textwrap.wrap(" ".join(text.split()), width, subsequent_indent=indent, break_on_hyphens=False)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 4]} ..."
