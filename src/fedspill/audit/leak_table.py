"""The table of what leaks to whom: one row per leak, one cell per adversary, none rated below a weaker one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from fedspill.audit.result import Finding, Headline, LeakCell, LeakRow, ScoreFigures, TwinSummary
from fedspill.audit.severity import DEGREES, Severity, State, bar_of, unit_advantage
from fedspill.audit.twin_scores import believed
from fedspill.audit.why_not import KNOWN_AS, OF_ANOTHER_KIND, OTHERS_RUN_IT
from fedspill.errors import FedspillError
from fedspill.leak import Degree, Leak, short_guessing
from fedspill.metric import Score
from fedspill.registry import entries, load, load_leak
from fedspill.threat import ADVERSARIES, FederationKind, ThreatModel

# Of several states, the one that a cell has: the first of these. A failed attack is no sign that nothing leaks.
WORST_FIRST: tuple[State, ...] = ("found", "undecided", "read", "errored", "not found", "not tested", "cannot")


def leak_rows(findings: Sequence[Finding], twin: TwinSummary | None = None) -> list[LeakRow]:
    """Every leak that some finding is about, the worst first."""
    adversaries = in_order({finding.adversary for finding in findings})
    names = list(dict.fromkeys(finding.family for finding in findings))
    leaks = {name: _leak(name, next(f.attack for f in findings if f.family == name)) for name in names}
    cells = {
        (name, adversary): _own_cell(
            adversary, [f for f in findings if (f.family, f.adversary) == (name, adversary)], leaks[name], twin
        )
        for name in names
        for adversary in adversaries
    }
    cells = {(name, adversary): _with_weaker(cell, name, cells) for (name, adversary), cell in cells.items()}
    rows = []
    for name in names:
        whole = [_implied(cells[name, adversary], leaks, name, cells) for adversary in adversaries]
        worst = max(whole, key=badness)
        leak = leaks[name]
        rows.append(
            LeakRow(
                leak=name,
                title=leak.title if leak else name,
                question=leak.question if leak else "",
                taxonomy=dict(leak.taxonomy) if leak else {},
                state=worst.state,
                severity=worst.severity,
                cells=whole,
            )
        )
    return sorted(rows, key=lambda row: tuple(-part for part in max(map(badness, row.cells))))


def in_order(adversaries: Iterable[str]) -> list[str]:
    """Adversaries in the order in which reports name them; those of others last."""
    known = list(ADVERSARIES)
    return sorted(adversaries, key=lambda name: (known.index(name) if name in known else len(known), name))


def badness(cell: LeakCell) -> tuple[int, int, float]:
    """Cells in order: by state, severity and advantage."""
    level = cell.severity if cell.severity is not None else Severity.INFO
    return len(WORST_FIRST) - WORST_FIRST.index(cell.state), level, cell.advantage or 0.0


def left_out_of(rows: Sequence[LeakRow], kind: FederationKind = "horizontal") -> list[str]:
    """Titles of the leaks that such a federation can have and the audit did not ask about."""
    asked = {row.leak for row in rows}
    others = [entry for entry in entries("leaks") if entry.name not in asked]
    return [entry.title for entry in others if entry.is_plugin or kind in load_leak(entry.name).federations]


def headline_of(rows: Sequence[LeakRow], findings: Sequence[Finding], twin: TwinSummary | None = None) -> Headline:
    """The worst row in one sentence."""
    found = [row for row in rows if row.state == "found"]
    read = [row for row in rows if row.state == "read"]
    if not found and read:
        return Headline(sentence=_read(read, findings, twin), read=True)
    if not found:
        return Headline(sentence=_nothing_found(rows))
    row = max(found, key=lambda row: max(map(badness, row.cells)))
    as_bad = [cell for cell in row.cells if cell.state == "found" and cell.severity == row.severity]
    cell = max(as_bad, key=lambda cell: (badness(cell), not cell.by_weaker))
    finding = next(finding for finding in findings if finding.id == cell.finding)
    leak = _leak(row.leak, finding.attack)
    others = [other.adversary for other in as_bad if other.adversary != cell.adversary and not other.by_weaker]
    names = [cell.adversary, *others]  # whoever can do it only because a weaker one can needs no mention
    who = list(dict.fromkeys(_who(name) for name in names))
    claim = leak.claimed(*_degrees(finding)) if leak else f"learn {row.title}"
    also = f", and so can {_listed(who[1:])}" if len(who) > 1 else ""
    return Headline(
        sentence=f"{who[0][:1].upper()}{who[0][1:]} can {claim}{also}.",
        leak=row.leak,
        adversaries=names,
        severity=row.severity,
        cell=cell,
        needs=[KNOWN_AS.get(word, word) for word in finding.used],
        lowered=finding.lowered,
    )


def _degrees(finding: Finding) -> tuple[Degree, Degree]:
    """How much can surely be done, and how much was measured; one and the same where the interval is narrow.

    Results before 0.2 do not say what is sure.
    """
    gained = finding.advantage or 0.0
    surely, measured = (bar_of(one) for one in (gained if finding.sure is None else finding.sure, gained))
    return DEGREES[max(surely, Severity.LOW)], DEGREES[max(measured, Severity.LOW)]  # what is found is above chance


def _read(rows: Sequence[LeakRow], findings: Sequence[Finding], twin: TwinSummary | None) -> str:
    """What the one who reads most reads, where nothing is known to be true."""
    names = list(dict.fromkeys(cell.adversary for row in rows for cell in row.cells if cell.state == "read"))
    most = max(names, key=lambda name: sum(_reads(row, name) for row in rows))
    cells = [cell for row in rows if (cell := row.cell(most)) is not None and cell.state == "read"]
    by_id = {finding.id: finding for finding in findings}
    # Where twins are like the recording, what is no better than guessing on them is no news.
    good = [cell for cell in cells if cell.severity is not None and cell.severity > Severity.INFO]
    who, summaries = _who(most), [cell.reading for cell in good or cells]
    said = f"{who[:1].upper()}{who[1:]} reads {_listed(summaries)}"
    if twin is None or not twin.possible:
        return f"{said}; nothing is known to say how far that is right."
    if not twin.like:
        return f"{said}; twins of this federation are unlike it, so nothing says how far that is right."
    scored = [figure for cell in good or cells if (figure := by_id[cell.finding].twin) is not None]
    if scored and not good:
        return f"{said}; on twins of this federation such readings are not surely better than guessing."
    figures = [f"{figure.figure} ({short_guessing(figure.figure, figure.guessing)})" for figure in scored]
    return f"{said}; on twins of this federation such readings get {_listed(figures) if figures else 'no score'}."


def _reads(row: LeakRow, adversary: str) -> bool:
    cell = row.cell(adversary)
    return cell is not None and cell.state == "read"


def _nothing_found(rows: Sequence[LeakRow]) -> str:
    states = {row.state for row in rows}
    if "undecided" in states:
        return "No leak was found, and some could not be ruled out."
    if "not found" in states:
        return "No leak was found: what was tried does no better than guessing."
    return "Nothing could be measured, so this says nothing about what leaks."


def _own_cell(
    adversary: str, findings: Sequence[Finding], leak: Leak[Any] | None, twin: TwinSummary | None
) -> LeakCell:
    """What the adversary's own attacks on a leak come to."""
    fitting = [finding for finding in findings if finding.lacks != OF_ANOTHER_KIND] or findings
    return _cell_of(adversary, fitting, leak, twin)


def _cell_of(adversary: str, findings: Sequence[Finding], leak: Leak[Any] | None, twin: TwinSummary | None) -> LeakCell:
    if not findings:
        return LeakCell(adversary=adversary, state="not tested", why="no attack of the plan")
    state = min((finding.state for finding in findings), key=WORST_FIRST.index)
    told = [finding for finding in findings if finding.state == state]
    if state in ("found", "undecided", "not found"):
        worst = max(told, key=lambda f: (f.level, f.gained, f.score.value is not None))
        return _scored_cell(adversary, state, worst, leak)
    if state == "read":
        return _read_cell(adversary, told, leak, twin)
    # Of several reasons: that of the attack called like its leak, our best one; else of the one nearest to a score.
    said = min(told, key=lambda finding: (finding.attack != finding.family, finding.lacks, finding.attack))
    said = min(told, key=lambda finding: (finding.lacks, finding.attack)) if state == "cannot" else said
    return LeakCell(adversary=adversary, state=state, finding=said.id, why=said.why_short)


def _read_cell(
    adversary: str, findings: Sequence[Finding], leak: Leak[Any] | None, twin: TwinSummary | None
) -> LeakCell:
    """Of several readings that which twins say most for; without twins that of the attack called like its leak."""

    def rank(finding: Finding) -> tuple[float, bool, float]:
        figures, expects = finding.twin, finding.reading.expects if finding.reading else None
        gained = 0.0
        if leak is not None and figures is not None and figures.value is not None and figures.chance is not None:
            gained = unit_advantage(figures.value, figures.chance, leak.headline.perfect)
        return gained, finding.attack == finding.family, expects or 0.0

    said = max(findings, key=rank)
    return LeakCell(
        adversary=adversary,
        state="read",
        severity=said.twin.severity if said.twin else None,
        finding=said.id,
        why=said.why_short,
        reading=said.reading.summary if said.reading else "",
        beside=believed(said, twin),
    )


def _scored_cell(adversary: str, state: State, finding: Finding, leak: Leak[Any] | None) -> LeakCell:
    score = finding.score
    value, chance = score.value or 0.0, score.chance or 0.0
    words = leak.words(_plain(score)) if leak else None
    return LeakCell(
        adversary=adversary,
        state=state,
        severity=finding.severity if state == "found" else None,
        advantage=finding.advantage,
        finding=finding.id,
        figure=words.figure if words else f"{value:.3g}",
        guessing=words.by_guessing if words else f"{chance:.3g}",
        between=_between(score, leak),
        sentence=words.sentence if words else f"{score.title} {value:.3g}",
        of_100=round(100 * leak.share(value)) if leak else None,
        of_100_by_guessing=round(100 * leak.share(chance)) if leak else None,
        n=score.n,
        why={"undecided": "too few measurements to tell", "not found": "no better than guessing"}.get(state, ""),
        repeats_to_decide=finding.repeats_to_decide,
        accepted=finding.accepted is not None,
    )


def _with_weaker(own: LeakCell, leak: str, cells: dict[tuple[str, str], LeakCell]) -> LeakCell:
    """The worst of what this adversary and any weaker one can do."""
    threat = _threat(own.adversary)
    worst = own
    for (name, adversary), cell in cells.items():
        other = _threat(adversary)
        weaker = name == leak and adversary != own.adversary and threat and other and threat.has_all_of(other)
        if weaker and (badness(cell) > badness(worst) or worst.why == OTHERS_RUN_IT):
            worst = cell.model_copy(update={"adversary": own.adversary, "by_weaker": adversary})
    return worst


def _implied(
    cell: LeakCell, leaks: dict[str, Leak[Any] | None], of: str, cells: dict[tuple[str, str], LeakCell]
) -> LeakCell:
    """Whoever has a leak that says this one too needs no attack of its own."""
    leak = leaks[of]
    if leak is None or cell.state not in ("cannot", "not tested"):
        return cell
    for name in leak.implied_by:
        other = cells.get((name, cell.adversary))
        if other is not None and other.state == "found":
            title = known.title if (known := leaks[name]) else name
            told = {"why": f"follows from {title[:1].lower()}{title[1:]}", "follows_from": name}
            return cell.model_copy(update={"state": "not tested", "severity": other.severity, **told})
    return cell


def _between(score: ScoreFigures, leak: Leak[Any] | None) -> str:
    """The interval in the leak's words, the smaller figure first."""
    if score.low is None or score.high is None:
        return ""
    if leak is None:
        return f"{score.low:.3g} to {score.high:.3g}"
    ends = sorted((score.low, score.high), key=leak.share)
    first, last = (leak.figure(end) for end in ends)
    tail = re.search(r" (of 100|%) .*$", last)
    before = re.match(r"^(\D* )-?\d", last)
    first = first.removesuffix(tail[0]) if tail else first
    return f"{first} to {last.removeprefix(before[1]) if before else last}"


def _plain(score: ScoreFigures) -> Score:
    value, low, high, chance = (
        math.nan if number is None else number for number in (score.value, score.low, score.high, score.chance)
    )
    return Score(value, low, high, score.n, chance)


def _leak(name: str, attack: str) -> Leak[Any] | None:
    """The leak of that name, or that of code of others, by the attack; None where that cannot be loaded."""
    with suppress(FedspillError):
        leak: Leak[Any] = load_leak(name)
        return leak
    with suppress(FedspillError):
        others: Leak[Any] = load("attacks", attack).leak
        return others
    return None


def _threat(name: str) -> ThreatModel | None:
    return ADVERSARIES.get(name)


def _who(name: str) -> str:
    threat = _threat(name)
    return threat.who if threat else name


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
