"""The first screen, as words: what leaks worst, to whom, whether defenses are on, what to do, how sure that is.

HTML, terminal and Markdown print this same object; every figure in it comes out of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedspill.audit.advice import MOST_LOST
from fedspill.audit.result import (
    AccuracyFigures,
    Advice,
    AuditResult,
    Headline,
    LeakCell,
    LeakChange,
    LeakRow,
    PrivacyClaim,
    TurnedAway,
    TwinSummary,
)
from fedspill.audit.severity import MOST, NEARLY_ALL, NOTICEABLE
from fedspill.audit.why_not import HOLDS_IT
from fedspill.leak import short_guessing
from fedspill.report.figures import counted, percent, points
from fedspill.report.readings import ShownReading, shown_readings, twin_words

MOST_REPEATS = 99  # that a person would run to decide a cell
MOST_NAMED = 5  # self-checks that failed; all are in the report
MOST_ADVICE = 3  # pieces of advice on the first screen; all are below it
CERTAIN = 100  # of 100, by guessing: no attack can be better, and what one gets says nothing
MOST_LOST_WORDS = f"{100 * MOST_LOST:.0f} points of accuracy"


@dataclass(frozen=True)
class ShownCell:
    """One cell of the table: its kind for colours, a word, a figure and what to hold it against, or a reason."""

    kind: str  # a severity, or a state with "-" for its spaces
    tag: str  # "high", "not found", ...
    main: str  # "87 of 100 labels"
    sub: str  # "57 by guessing", or why
    by: str = ""  # the leak that says this one too, by its short name, where there is little room


@dataclass(frozen=True)
class ShownRow:
    leak: str
    title: str
    cells: tuple[ShownCell, ...]
    tested: bool  # whether any cell has a figure
    reason: str  # why not, of one without any: "not tested (a malicious server: ...)"


@dataclass(frozen=True)
class ShownAdvice:
    title: str  # what to do
    effect: str  # "Labels in a round: high to low"
    cost: str
    needs: str
    lines: str
    flower: str


@dataclass(frozen=True)
class FirstScreen:
    """What people read first."""

    sentence: str
    severity: str
    about: str
    data_note: str
    banner: tuple[str, ...]  # configured defenses that are off
    violated: tuple[str, ...]  # claims of differential privacy that do not hold
    claims: tuple[str, ...]  # the others
    turned_away: tuple[str, ...]  # honest models that configured defenses refused or repaired
    verdict: str  # the figure, in the leak's words
    beside: str  # guessing, interval, n, what it takes
    picture: tuple[int, int] | None  # of 100: read, and by guessing
    columns: tuple[tuple[str, str], ...]  # who, and what that is
    rows: tuple[ShownRow, ...]
    readings: tuple[ShownReading, ...]  # of a recording whose truth is not known
    twin: str  # whether readings could be held against twins
    left_out: str
    defenses: str
    advice: tuple[ShownAdvice, ...]
    after: tuple[ShownRow, ...]
    after_words: str
    unhelped: str
    in_vain: str  # defenses that were tried and are not worth their cost, and those that could not help
    sure: tuple[str, ...]

    @property
    def tested(self) -> tuple[ShownRow, ...]:
        """Rows of the table: those with a figure."""
        return tuple(row for row in self.rows if row.tested)

    @property
    def untested(self) -> tuple[ShownRow, ...]:
        """Rows without any figure: all that they have is a reason."""
        return tuple(row for row in self.rows if not row.tested)


def first_screen(result: AuditResult) -> FirstScreen:
    headline = result.headline
    after = result.after
    return FirstScreen(
        sentence=headline.sentence,
        severity=headline.severity.word if headline.severity is not None else "none",
        about=_about(result),
        data_note=result.data_note,
        banner=tuple(f"{check.defense}: {check.why}" for check in result.defense_checks if check.on is False),
        violated=tuple(claim_words(claim) for claim in result.privacy_claims if claim.verdict == "violated"),
        claims=tuple(claim_words(claim) for claim in result.privacy_claims if claim.verdict != "violated"),
        turned_away=tuple(turned_away_words(one) for one in result.turned_away),
        verdict=_capital(headline.cell.sentence) if headline.cell else "",
        beside=_beside(headline, result.twin),
        picture=_picture(headline),
        columns=tuple((_capital(a.who) or a.name, a.short or a.title) for a in result.adversaries),
        rows=tuple(shown_row(row, result) for row in result.leaks),
        readings=shown_readings(result),
        twin=twin_words(result.twin),
        left_out=f"Not asked by this plan: {_listed(result.left_out)}." if result.left_out else "",
        defenses=_defenses(result),
        advice=tuple(shown_advice(advice, result.accuracy) for advice in _first_advice(result)),
        after=tuple(shown_row(row, result) for row in _as_before(after.leaks, result.leaks)) if after else (),
        after_words=_after_words(after.advice) if after else "",
        unhelped=_unhelped(result),
        in_vain=_in_vain(result),
        sure=_sure(result),
    )


def claim_words(claim: PrivacyClaim) -> str:
    """What is claimed, and what was found out about it, as one sentence."""
    if claim.claimed is None:
        return f"{claim.defense} claims differential privacy; {claim.said}"
    said = f"{claim.defense} claims epsilon {claim.claimed:.4g} at delta {claim.delta:g}"
    if claim.tested is not None and claim.tested != claim.claimed:
        said += f", by steps that were tested and whose own claim is {claim.tested:.4g}"
    return f"{said}; {claim.said}"


def turned_away_words(one: TurnedAway) -> str:
    """How often a configured defense raised a false alarm, and what that does, as one sentence."""
    counts = [f"refused {one.refused}"] * (one.refused > 0) + [f"repaired {one.repaired}"] * (one.repaired > 0)
    models = "model" if one.refused + one.repaired == 1 else "models"
    trained = ": who refuses does not train" if one.refused else ""
    where = f"{counted(one.clients, 'client')} in {counted(one.rounds, 'round')}"
    return f"{one.defense} {' and '.join(counts)} {models} of an honest server, at {where}{trained}"


def _as_before(after: Sequence[LeakRow], before: Sequence[LeakRow]) -> list[LeakRow]:
    """In the order of the first table, so that rows can be compared by their place."""
    places = {row.leak: place for place, row in enumerate(before)}
    return sorted(after, key=lambda row: places.get(row.leak, len(places)))


def shown_row(row: LeakRow, result: AuditResult) -> ShownRow:
    cells = [row.cell(adversary.name) for adversary in result.adversaries]
    shown = tuple(shown_cell(cell, result) for cell in cells)
    tested = any(cell is not None and cell.figure + cell.reading != "" for cell in cells)
    return ShownRow(row.leak, row.title, shown, tested, "" if tested else _reason(shown, result))


def _reason(cells: tuple[ShownCell, ...], result: AuditResult) -> str:
    """The reason that is nearest to a measurement: one of "not tested" before one of "cannot"."""
    told = [(cell.kind == "cannot", place) for place, cell in enumerate(cells)]
    if not told:
        return ""
    _, place = min(told)
    adversary, cell = result.adversaries[place], cells[place]
    return f"{cell.tag} ({adversary.who or adversary.name}: {cell.sub})"


def shown_cell(cell: LeakCell | None, result: AuditResult) -> ShownCell:
    if cell is None:
        return ShownCell("not-tested", "not tested", "", "not in the plan")
    if cell.state == "found":
        word = cell.severity.word if cell.severity is not None else "low"
        return ShownCell(word, word + (", accepted" if cell.accepted else ""), cell.figure, _guessing(cell))
    if cell.state == "read":
        return ShownCell("read", "read", cell.reading, cell.beside)
    if cell.follows_from and cell.severity is not None:
        return ShownCell(cell.severity.word, cell.severity.word, "", cell.why, cell.follows_from.replace("_", " "))
    kind = cell.state.replace(" ", "-")
    if cell.state in ("not found", "undecided") and cell.of_100_by_guessing == CERTAIN:
        return ShownCell(kind, "nothing to find", "", f"guessing alone gets {cell.guessing}")
    if cell.state == "not found":
        return ShownCell(kind, cell.state, cell.figure, _no_better(cell))
    if cell.state == "undecided":
        return ShownCell(kind, cell.state, cell.between or cell.figure, _to_decide(cell, result))
    if cell.why == HOLDS_IT:
        return ShownCell("cannot", "its own", "", cell.why)
    return ShownCell(kind, cell.state, "", cell.why)


def shown_advice(advice: Advice, before: AccuracyFigures | None) -> ShownAdvice:
    effects = [f"{change.title}: {_moved(change)}" for change in advice.changes]
    knew = all(change.adaptive for change in advice.changes)
    cost = "accuracy not measured"
    if advice.accuracy:
        now, was = percent(advice.accuracy.value), percent(before.value) if before else ""
        cost = f"accuracy stays {now}" if now == was else f"accuracy {now}" + (f" instead of {was}" if was else "")
    tested = "Tested against attackers who know it." if knew else "Some attackers did not know of it: more may be left."
    needs = list(dict.fromkeys(need for defense in advice.defenses for need in defense.needs))
    return ShownAdvice(
        title=_title(advice),
        effect="; ".join(effects),
        cost=f"{_capital(cost)}. {tested}",
        needs=f"Needs {_listed(needs)}." if needs else "",
        lines=advice.plan_lines,
        flower=advice.flower_lines,
    )


def _title(advice: Advice) -> str:
    """With the name of a single defense; those of several are in the lines to paste."""
    only = f" ({advice.defenses[0].name})" if len(advice.defenses) == 1 else ""
    return " + ".join(defense.title.partition(": ")[0] for defense in advice.defenses) + only


def _moved(change: LeakChange) -> str:
    before = change.before.word if change.before is not None else "not found"
    if change.state == "undecided":  # no step down: it may still be as bad
        return f"{before}, now undecided"
    return f"stays {before}" if before == _left(change) else f"{before} to {_left(change)}"


def _left(change: LeakChange) -> str:
    if change.after is not None and change.state == "found":
        return change.after.word
    return "out of reach" if change.state == "cannot" else change.state


def _guessing(cell: LeakCell) -> str:
    return short_guessing(cell.figure, cell.guessing)


def _no_better(cell: LeakCell) -> str:
    """Of a figure that is no success, however high it is: guessing gets as much or more."""
    return f"no better than guessing, which gets {_guessing(cell).removesuffix(' by guessing')}"


def _to_decide(cell: LeakCell, result: AuditResult) -> str:
    """What guessing gets, which the interval has on both sides, and how much more would have to be measured."""
    beside = _guessing(cell)
    if cell.repeats_to_decide is None or cell.repeats_to_decide > MOST_REPEATS:
        return f"{beside}; too few measurements"
    if result.target == "trace":
        times = max(2, cell.repeats_to_decide // max(len(result.provenance.seeds), 1))
        return f"{beside}; {times} times the rounds would tell"
    return f"{beside}; {cell.repeats_to_decide} repeats would tell"


def _about(result: AuditResult) -> str:
    own = "." in result.deployment.partition(",")[0]  # a file's name is written as it is
    said = f"{result.deployment if own else _capital(result.deployment)}."
    return f"{said} Test accuracy {percent(result.accuracy.value)}." if result.accuracy else said


def _beside(headline: Headline, twin: TwinSummary | None) -> str:
    cell = headline.cell
    if cell is None and headline.read and twin is not None and twin.like:
        return "Readings were held against twins of this federation, whose truth is known, and not against its own."
    if cell is None and headline.read:
        return "Readings are guesses that nothing was held against: neither a finding nor a pass."
    if cell is None:
        return "That is what these attacks found on this data. It is no proof that nothing leaks."
    between = f" The 95 % interval is {cell.between}." if cell.between else ""
    needs = f"The attacker needs {_listed(headline.needs)}" if headline.needs else "The attacker needs what it sees"
    lowered = f" Rated one level less, since {headline.lowered}." if headline.lowered else ""
    return f"Guessing without access gets {cell.guessing}.{between} {needs}, and nothing else.{lowered}"


def _picture(headline: Headline) -> tuple[int, int] | None:
    cell = headline.cell
    if cell is None or cell.of_100 is None or cell.of_100_by_guessing is None:
        return None
    return cell.of_100, cell.of_100_by_guessing


def _first_advice(result: AuditResult) -> list[Advice]:
    """The combination first, then single defenses that are not it."""
    best = [result.after.advice] if result.after else []
    taken = [[defense.setting for defense in advice.defenses] for advice in best]
    singles = [advice for advice in result.advice if [defense.setting for defense in advice.defenses] not in taken]
    return [*best, *singles][:MOST_ADVICE]


def _defenses(result: AuditResult) -> str:
    checks, federation = result.defense_checks, result.plan.get("federation") or {}
    if not checks:
        return "No defense is on" + (" beside secure aggregation." if federation.get("secure_aggregation") else ".")
    words = {True: "is on", False: "is OFF", None: "cannot be verified from messages"}
    return "Configured: " + "; ".join(f"{check.defense} {words[check.on]}" for check in checks) + "."


def _after_words(advice: Advice) -> str:
    names = " and ".join(defense.setting for defense in advice.defenses)
    cost = f": accuracy {percent(advice.accuracy.value)} ({points(advice.accuracy_change)})" if advice.accuracy else ""
    return f"With {names} in place{cost}"


def _unhelped(result: AuditResult) -> str:
    titles = [row.title for row in result.leaks if row.leak in result.unhelped]
    if titles:
        return f"None of the defenses tried helps enough against: {_listed(titles)}."
    if result.target == "trace":
        return "No defense was tried: a recording cannot be trained again."
    found = any(row.state == "found" for row in result.leaks)
    if not found:
        return _to_decide_more(result)
    if result.advice or result.after:
        return ""
    none = result.plan.get("candidates") in ([], ())
    return "No defense was tried on what was found" + (
        ": the plan says candidates = []. Leave that line out, and all that fit are." if none else "."
    )


def _to_decide_more(result: AuditResult) -> str:
    """What to do where nothing is found and something undecided: as many repeats as would tell half of it."""
    told = [cell.repeats_to_decide for row in result.leaks for cell in row.cells if cell.state == "undecided"]
    known = sorted(many for many in told if many is not None and many <= MOST_REPEATS)
    if not known:
        return ""
    return (
        f"Nothing was found, and much is undecided: measure more before you rely on it. repeats = "
        f"{known[len(known) // 2]} in the plan would decide about half of it."
    )


def _in_vain(result: AuditResult) -> str:
    """The defenses that lower no leak by a level at a cost that is advised, by name; the report has their figures."""
    advised = [*result.advice, *([result.after.advice] if result.after else [])]
    helps = {defense.name for advice in advised for defense in advice.defenses}
    tried = dict.fromkeys(setting.defense for family in result.families for setting in family.settings)
    names = [name for name in tried if name and name not in helps]
    said = [f"No gain worth {MOST_LOST_WORDS}: {_listed(names)}."] if names else []
    if result.untried and result.plan.get("candidates"):  # whoever names a defense asks what it does here
        said.append(
            f"Not tried, because what was found here is found without what they change: {_listed(result.untried)}."
        )
    return " ".join(said)


def _sure(result: AuditResult) -> tuple[str, ...]:
    """Seeds, self-checks, what is open."""
    passed = sum(control.passed for control in result.controls)
    seeds = len(result.provenance.seeds)
    said = [
        f"{counted(seeds, 'federation')} trained" if result.target == "plan" else "one recording",
        f"{passed} of {counted(len(result.controls), 'self-check')} passed{_failed_checks(result)}",
    ]
    failed = [row.title for row in result.leaks if any(cell.state == "errored" for cell in row.cells)]
    read = sum(finding.status == "read" for finding in result.findings)
    if read:
        said.append(f"{counted(read, 'attack')} read something that nothing is known to hold against")
    if any(cell.state == "undecided" for row in result.leaks for cell in row.cells):
        more = "more federations (repeats in the plan)" if result.target == "plan" else "a longer recording"
        said.append(f"what is undecided takes {more} to tell")
    if failed:
        said.append(f"could not be measured: {_listed(failed)}")
    if not result.verdict.complete and not failed and not read:
        said.append("some attacks gave nothing")
    said.append("not found means that we did not find it, not that it is safe")
    said.append(
        f"medium is from {NOTICEABLE} of the way from guessing to certainty, high from {MOST}, "
        f"critical from {NEARLY_ALL}"
    )
    return tuple(said)


def _failed_checks(result: AuditResult) -> str:
    """The self-checks that did not pass, by the ids of their findings."""
    failed = [control.id for control in result.controls if not control.passed]
    more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
    return f", but not {', '.join(failed[:MOST_NAMED])}{more}" if failed else ""


def _listed(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
