"""How an audit ends on the command line: outputs are written, a summary is shown, an exit code says what it means."""

from __future__ import annotations

from pathlib import Path

import typer

from fedspill.audit.result import AuditResult
from fedspill.audit.severity import Severity
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode
from fedspill.report import text
from fedspill.report.outputs import write_all


def exit_code(result: AuditResult) -> ExitCode:
    """1 for findings at or above the bar or a defense that is off, else 3 when something is not measured or decided.

    A defense whose claim of privacy is violated counts like one that is off. What twins of a recording say counts as a
    finding, where they are like it. 5 for a recording that was read and whose truth is not known: neither a pass nor a
    failure.
    """
    bar = result.plan["fail_on"]
    open_ = [finding for finding in result.findings if finding.status == "ok" and not finding.accepted]
    off = any(check.on is False for check in result.defense_checks)
    violated = any(claim.verdict == "violated" for claim in result.privacy_claims)
    if off or violated or (bar and any(finding.level >= Severity[bar.upper()] for finding in open_)):
        return ExitCode.FINDINGS
    on_twins = [f.twin.severity for f in result.findings if f.twin is not None and f.twin.severity is not None]
    if bar and any(level >= Severity[bar.upper()] for level in on_twins):
        return ExitCode.FINDINGS
    undecided = [f for f in open_ if f.state == "undecided" and f.likely is not None]
    if bar and any(f.likely >= Severity[bar.upper()] for f in undecided if f.likely is not None):
        return ExitCode.INCOMPLETE
    if not _failed(result) and any(finding.status == "read" for finding in result.findings):
        return ExitCode.READ
    return ExitCode.OK if result.verdict.complete else ExitCode.INCOMPLETE


def _failed(result: AuditResult) -> bool:
    """Whether something that was tried gave nothing."""
    return any(finding.status in ("errored", "unscored") for finding in result.findings)


def finish(screen: Screen, folder: Path, result: AuditResult, *also: Path | None) -> None:
    """Writes, shows, and ends with the code that the result deserves."""

    names = ("html", "json", "sarif", "junit", "markdown")
    written = write_all(folder, result, {name: path for name, path in zip(names, also, strict=True) if path})
    for line in text.lines(result):
        screen.say(line)
    screen.say(f"Report: {written['html']}")
    code = exit_code(result)
    if code:
        raise typer.Exit(code)
