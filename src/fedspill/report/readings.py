"""What adversaries read, for pages: one reading a leak and adversary, its tables with a word for what is not told."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedspill.audit.result import AuditResult, Finding, TwinSummary
from fedspill.reading import FEW, Entry

TOO_FEW = f"under {FEW}"  # for what is too small to be told


@dataclass(frozen=True)
class ShownTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShownReading:
    """One attack's answer, and how far it can be believed."""

    leak: str
    title: str  # of the leak
    who: str
    attack: str
    summary: str
    sure: str
    tables: tuple[ShownTable, ...]
    withheld: str


def shown_readings(result: AuditResult) -> tuple[ShownReading, ...]:
    """The readings that the cells of the table speak of, each once, with all who can read it."""
    by_id = {finding.id: finding for finding in result.findings}
    who = {adversary.name: adversary.who or adversary.name for adversary in result.adversaries}
    shown: dict[tuple[str, str, str], ShownReading] = {}
    for row in result.leaks:
        for cell in row.cells:
            finding = by_id.get(cell.finding)
            if cell.state == "read" and finding is not None and finding.reading is not None:
                one = _shown(row.leak, row.title, who[finding.adversary], finding, cell.beside)
                same = shown.setdefault((one.leak, one.attack, one.summary), one)
                if one.who not in same.who:
                    shown[one.leak, one.attack, one.summary] = replace(same, who=f"{same.who}, {one.who}")
    return tuple(shown.values())


def _shown(leak: str, title: str, who: str, finding: Finding, beside: str) -> ShownReading:
    reading = finding.reading
    assert reading is not None
    tables = tuple(
        ShownTable(table.title, tuple(table.columns), tuple(tuple(map(_entry, row)) for row in table.rows))
        for table in reading.tables
    )
    withheld = f"Not shown without --show-data: {reading.withheld}." if reading.withheld else ""
    return ShownReading(leak, title, who, finding.attack, reading.summary, beside, tables, withheld)


def _entry(value: Entry) -> str:
    return TOO_FEW if value is None else str(value)


def twin_words(twin: TwinSummary | None) -> str:
    """Whether the recorded federation could be run again where the truth is known, and whether that is like it."""
    if twin is None:
        return ""
    if not twin.possible:
        return f"No twin of this federation could be made, so readings stand by themselves: {_lowered(twin.why)}"
    alike = sum(check.alike for check in twin.checks)
    made = (
        f"{twin.twins} twins were run with proxy data, from the recorded models, with as many rounds, clients, samples "
        f"and steps; {alike} of {len(twin.checks)} quantities of the recording are as theirs"
    )
    server = "" if twin.chained else " The server does not average plainly; twins start anew from each recorded model."
    verdict = "" if twin.like else f" So their scores say little of it: {twin.why}."
    return f"{made}.{verdict}{server}"


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
