"""Two audits as one page: both first screens side by side, with what changed beyond noise marked."""

from __future__ import annotations

from dataclasses import dataclass

from fedspill.audit.compare import Difference, apart, compare
from fedspill.audit.result import AuditResult, LeakRow
from fedspill.report.clean import cleaned
from fedspill.report.first_screen import FirstScreen, ShownCell, first_screen, shown_cell
from fedspill.report.html import environment


@dataclass(frozen=True)
class ComparedCell:
    """One adversary's cell of a leak before and after; `change` is empty where nothing lies beyond noise."""

    who: str
    before: ShownCell
    after: ShownCell
    change: str


@dataclass(frozen=True)
class ComparedRow:
    title: str
    cells: tuple[ComparedCell, ...]


def render(before: AuditResult, after: AuditResult) -> str:
    """The page of a comparison."""
    before, after = cleaned(before), cleaned(after)
    found = compare(before, after)
    screens: tuple[FirstScreen, FirstScreen] = (first_screen(before), first_screen(after))
    return (
        environment()
        .get_template("comparison.html")
        .render(
            screens=screens,
            apart=apart(before, after),
            rows=compared_rows(before, after, found),
            changed=[difference for difference in found if difference.change != "same"],
            same=sum(difference.change == "same" for difference in found),
            links=False,
        )
    )


def compared_rows(before: AuditResult, after: AuditResult, found: list[Difference]) -> list[ComparedRow]:
    """Every leak of either audit, for every adversary of either."""
    old, new = ({row.leak: row for row in result.leaks} for result in (before, after))
    adversaries = {adversary.name: adversary for adversary in [*before.adversaries, *after.adversaries]}
    changes = {difference.id: difference.change for difference in found}
    rows = []
    for leak in dict.fromkeys([*new, *old]):
        cells = []
        for name, adversary in adversaries.items():
            cell_before, cell_after = (row.cell(name) if (row := rows_of.get(leak)) else None for rows_of in (old, new))
            said = {changes.get(cell.finding, "same") for cell in (cell_before, cell_after) if cell}
            told: list[str] = sorted(said - {"same"})
            if (cell_before is None) != (cell_after is None):
                told = ["new here" if cell_before is None else "gone"]
            cells.append(
                ComparedCell(
                    adversary.who or name,
                    shown_cell(cell_before, before),
                    shown_cell(cell_after, after),
                    ", ".join(told),
                )
            )
        rows.append(ComparedRow(_title(new.get(leak), old.get(leak)), tuple(cells)))
    return rows


def _title(new: LeakRow | None, old: LeakRow | None) -> str:
    row = new or old
    return row.title if row else ""
