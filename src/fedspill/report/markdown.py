"""Markdown for pull requests: the first screen."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedspill.audit.result import AuditResult
from fedspill.report.clean import cleaned
from fedspill.report.first_screen import FirstScreen, ShownCell, ShownRow, first_screen

MOST_TABLES = 2  # of readings; the page has all
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>])")


def render(result: AuditResult) -> str:
    """The first screen, for pull requests."""
    result = cleaned(result)
    screen = first_screen(result)
    lines = [f"## Fedspill: {text(screen.sentence)}", ""]
    if screen.banner:
        lines += ["**A configured defense is OFF. This audit fails whatever else it found.**", ""]
        lines += [f"- {text(line)}" for line in screen.banner] + [""]
    if screen.violated:
        lines += ["**A claim of differential privacy is violated. This audit fails whatever else it found.**", ""]
        lines += [f"- {text(line)}." for line in screen.violated] + [""]
    for line in screen.turned_away:
        lines += [f"**False alarms:** {text(line)}.", ""]
    if screen.verdict:
        lines += [f"**{text(screen.verdict)}** ({screen.severity}). {text(screen.beside)}", ""]
    lines += [f"{text(screen.about)} **{text(screen.defenses)}**", "", *_table(screen.tested, screen), ""]
    lines += [f"About the data: {text(screen.data_note)}", ""] if screen.data_note else []
    for line in screen.claims:
        lines += [f"{text(line)}.", ""]
    lines += [f"- {text(row.title)}: {text(row.reason)}" for row in screen.untested]
    lines += [""] if screen.untested else []
    lines += _readings(screen)
    if screen.left_out:
        lines += [text(screen.left_out), ""]
    failed = [finding for finding in result.findings if finding.status in ("unscored", "errored")]
    if failed:
        lines += ["Could not be scored, which is not a pass:", ""]
        lines += [f"- {text(f.id)}: {f.status}, {text(f.why)}" for f in failed] + [""]
    if screen.advice or screen.unhelped:
        lines += ["**What to do, measured on this federation**", ""]
        lines += [f"1. **{text(a.title)}**: {text(a.effect)}. {text(a.cost)} {text(a.needs)}" for a in screen.advice]
        lines += ["", text(screen.unhelped)] if screen.unhelped else []
        lines += ["", text(screen.in_vain)] if screen.in_vain else []
        lines.append("")
    if screen.after:
        lines += [f"**After.** {text(screen.after_words)}:", "", *_table(screen.after, screen), ""]
    lines += [f"**How sure.** {text('; '.join(screen.sure))}."]
    for entry in result.accepted:
        if entry.state != "in force":
            lines += ["", f"Accept entry {text(entry.id)} accepts nothing: {entry.state}."]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[ShownRow], screen: FirstScreen) -> list[str]:
    head = ["What leaks", *(text(who) for who, _ in screen.columns)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [text(row.title), *(_cell(cell) for cell in row.cells)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _readings(screen: FirstScreen) -> list[str]:
    lines = ["**What is read, and how far that can be believed**", ""] if screen.readings else []
    for one in screen.readings:
        lines += [f"- {text(one.summary)}, read by {text(one.who)} ({text(one.attack)}): {text(one.sure)}."]
    lines += ["", text(screen.twin)] if screen.twin else []
    for table in [table for one in screen.readings for table in one.tables][:MOST_TABLES]:
        lines += ["", f"{text(table.title)}:", "", f"| {' | '.join(map(text, table.columns))} |"]
        lines += ["|" + "---|" * len(table.columns), *(f"| {' | '.join(map(text, row))} |" for row in table.rows)]
    return [*lines, ""] if lines else []


def _cell(cell: ShownCell) -> str:
    if cell.main:
        return f"**{cell.tag}** {text(cell.main)}, {text(cell.sub)}"
    return f"{cell.tag}: {text(cell.sub)}" if cell.sub else cell.tag


def text(value: str) -> str:
    """Outside text as text: no markup, no links, no mentions, one line."""
    line = " ".join(value.split())
    escaped = _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))
    # A mention, a formula or a bare address would still be taken for one.
    return escaped.replace("@", "&#64;").replace("=", "&#61;").replace(":", "&#58;")
