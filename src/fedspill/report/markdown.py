"""Markdown for pull requests: the verdict, the table, what helps."""

from __future__ import annotations

import re

from fedspill.audit.result import AuditResult, AuditVerdict, Finding
from fedspill.audit.severity import Severity
from fedspill.report.clean import cleaned

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>])")


def render(result: AuditResult) -> str:
    result = cleaned(result)
    verdict = result.verdict
    lines = [f"## Fedspill: {_headline(verdict)}", "", f"{text(result.deployment)}", ""]
    scored = [finding for finding in result.findings if finding.status == "ok"]
    failed = [finding for finding in result.findings if finding.status in ("unscored", "errored")]
    if scored:
        lines += ["| severity | attack | adversary | score \\[95 %\\] | chance | n |", "|---|---|---|---|---|---|"]
        lines += [_row(finding) for finding in scored] + [""]
    if failed:
        lines += ["Could not be scored, which is not a pass:", ""]
        lines += [f"- {text(f.id)}: {f.status}, {text(f.why)}" for f in failed] + [""]
    off = [check for check in result.defense_checks if check.on is False]
    if off:
        lines += ["Configured but not applied:", ""]
        lines += [f"- {text(check.defense)}: {text(check.why)}" for check in off] + [""]
    if result.families:
        lines += ["What helps, measured:", ""]
        lines += [f"- {text(f.family)}: {text(f.advice)}" for f in result.families] + [""]
    counts = verdict.statuses
    lines.append(
        f"{counts['ok']} scored, {counts['unscored']} unscored, {counts['errored']} errored, "
        f"{counts['skipped']} skipped, {verdict.accepted} accepted. "
        "Near chance means that we did not find a leak, not that there is none."
    )
    return "\n".join(lines) + "\n"


def _headline(verdict: AuditVerdict) -> str:
    if verdict.worst is None:
        return "nothing could be scored"
    if verdict.worst == Severity.INFO:
        return "no leak found above chance"
    return f"worst finding {verdict.worst.word}" + ("" if verdict.complete else ", audit incomplete")


def _row(finding: Finding) -> str:
    score = finding.score
    word = finding.level.word + (" (accepted)" if finding.accepted else "")
    interval = f"{score.value} \\[{score.low}, {score.high}\\]"
    cells = [word, text(finding.attack), text(finding.adversary), interval, str(score.chance), str(score.n)]
    return f"| {' | '.join(cells)} |"


def text(value: str) -> str:
    """Outside text as text: no markup, no links, no mentions, one line."""
    line = " ".join(value.split())
    escaped = _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))
    # A mention, a formula or a bare address would still be taken for one.
    return escaped.replace("@", "&#64;").replace("=", "&#61;").replace(":", "&#58;")
