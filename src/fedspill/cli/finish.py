"""How an audit ends on the command line: outputs are written, a summary is shown, an exit code says what it means."""

from __future__ import annotations

from pathlib import Path

import typer

from fedspill.audit.result import AuditResult
from fedspill.audit.severity import Severity
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode
from fedspill.report.outputs import write_all


def exit_code(result: AuditResult) -> ExitCode:
    """1 for findings at or above the bar, else 3 when something was not measured, else 0."""
    bar = result.plan["fail_on"]
    open_ = [finding for finding in result.findings if finding.status == "ok" and not finding.accepted]
    if bar and any(finding.level >= Severity[bar.upper()] for finding in open_):
        return ExitCode.FINDINGS
    return ExitCode.OK if result.verdict.complete else ExitCode.INCOMPLETE


def finish(screen: Screen, folder: Path, result: AuditResult, *also: Path | None) -> None:
    """Writes, shows, and ends with the code that the result deserves."""

    names = ("html", "json", "sarif", "junit", "markdown")
    written = write_all(folder, result, {name: path for name, path in zip(names, also, strict=True) if path})
    _show(screen, result)
    screen.say(f"Report: {written['html']}")
    code = exit_code(result)
    if code:
        raise typer.Exit(code)


def _show(screen: Screen, result: AuditResult) -> None:
    screen.say(result.deployment)
    rows = []
    for finding in result.findings:
        if finding.status == "ok":
            score = finding.score
            word = finding.level.word + (" (accepted)" if finding.accepted else "")
            value = f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
            rows.append(
                [word, finding.attack, finding.adversary, score.metric, value, f"{score.chance:.3f}", str(score.n)]
            )
        elif finding.status != "skipped":
            rows.append([finding.status, finding.attack, finding.adversary, finding.why, "", "", ""])
    if rows:
        screen.table(["severity", "attack", "adversary", "metric", "score [95 %]", "chance", "n"], rows)
    for check in result.defense_checks:
        if check.on is False:
            screen.say(f"Configured but not applied: {check.defense}: {check.why}.")
    for leak in result.families:
        screen.say(f"What helps against leaks of {leak.family}, measured: {leak.advice}")
    counts, controls = result.verdict.statuses, result.controls
    screen.say(
        f"{counts['ok']} scored, {counts['unscored']} unscored, {counts['errored']} errored, "
        f"{counts['skipped']} skipped; "
        f"{sum(control.passed for control in controls)} of {len(controls)} controls passed."
    )
