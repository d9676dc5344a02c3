"""How an audit ends on the command line: outputs are written, a summary is shown, an exit code says what it means."""

from __future__ import annotations

from pathlib import Path

import typer

from fedspill.audit.result import AuditResult, may_be_at
from fedspill.audit.severity import Severity
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode
from fedspill.report import text
from fedspill.report.outputs import write_all

MOST_NAMED = 5  # findings on the terminal; all are in the report


def exit_code(result: AuditResult) -> ExitCode:
    """1 for findings at or above the bar or a defense that is off, else 3 when something is not measured or decided.

    A defense whose claim of privacy is violated counts like one that is off. What twins of a recording say counts as a
    finding, where they are like it. 5 for a recording that was read and whose truth is not known: neither a pass nor a
    failure.
    """
    return ending(result)[0]


def ending(result: AuditResult) -> tuple[ExitCode, str]:
    """The code, and what made it, by the ids that an `accept` file names; nothing for 0."""
    bar = result.plan["fail_on"]
    open_ = [finding for finding in result.findings if finding.status == "ok" and not finding.accepted]
    failures = [f"{check.defense} is off" for check in result.defense_checks if check.on is False]
    failures += [f"the claim of {c.defense} is violated" for c in result.privacy_claims if c.verdict == "violated"]
    level = Severity[bar.upper()] if bar else None
    if level is not None:
        failures += [f"{finding.id} is {finding.level.word}" for finding in open_ if finding.level >= level]
        failures += [
            f"{f.id} is {f.twin.severity.word} on twins"
            for f in result.findings
            if f.twin is not None and f.twin.severity is not None and f.twin.severity >= level
        ]
    if failures:
        return ExitCode.FINDINGS, _some(failures)
    undecided = [f.id for f in open_ if level is not None and may_be_at(f, level)]
    if undecided:
        return ExitCode.INCOMPLETE, f"undecided, and {bar} or worse if its value stays: {_some(undecided)}"
    nothing = [f"{f.id} ({f.status})" for f in result.findings if f.status in ("errored", "unscored")]
    if not nothing and any(finding.status == "read" for finding in result.findings):
        return ExitCode.READ, "what was read could not be held against any truth"
    if result.verdict.complete:
        return ExitCode.OK, ""
    return ExitCode.INCOMPLETE, _some(nothing) if nothing else "not all that was asked could be measured"


def _some(words: list[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more


def finish(screen: Screen, folder: Path, result: AuditResult, *also: Path | None) -> None:
    """Writes, shows, and ends with the code that the result deserves."""

    names = ("html", "json", "sarif", "junit", "markdown")
    written = write_all(folder, result, {name: path for name, path in zip(names, also, strict=True) if path})
    for line in text.lines(result, text.fitting(screen.width)):
        screen.say(line)
    screen.say(f"Report: {written['html']}")
    code, why = ending(result)
    if code:
        screen.say(f"Exit code {int(code)}: {why}.")
        raise typer.Exit(code)
