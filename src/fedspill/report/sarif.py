"""SARIF 2.1.0, for code-scanning pages: one rule per attack, one result per finding, at its line of the plan file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspill.audit.result import AuditResult, Finding
from fedspill.audit.severity import Severity
from fedspill.deployment.toml_lines import line_of
from fedspill.report.clean import cleaned

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "none"}
# What GitHub sorts by: the middle of each of its own bands.
SECURITY = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.5", "info": "0.0"}


def render(result: AuditResult) -> str:
    result = cleaned(result)
    findings = result.findings
    worst: dict[str, Severity] = {}
    for finding in findings:  # worst first, so the first severity of an attack is its worst
        if finding.severity is not None:
            worst.setdefault(finding.attack, finding.severity)
    rules = {finding.attack: _rule(finding, worst.get(finding.attack, Severity.INFO)) for finding in findings}
    order = {name: index for index, name in enumerate(rules)}
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {"name": "fedspill", "version": result.fedspill, "rules": list(rules.values())},
                },
                "invocations": [{"executionSuccessful": result.verdict.complete}],
                "results": [_result(finding, order, result) for finding in findings],
            }
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _rule(finding: Finding, worst: Severity) -> dict[str, Any]:
    return {
        "id": finding.attack,
        "shortDescription": {"text": finding.title},
        "properties": {
            "tags": ["privacy", "federated-learning", finding.family],
            "security-severity": SECURITY[worst.word],
        },
    }


def _result(finding: Finding, order: Mapping[str, int], result: AuditResult) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "ruleId": finding.attack,
        "ruleIndex": order[finding.attack],
        **_kind(finding),
        "message": {"text": _message(finding)},
        "partialFingerprints": {"fedspill/v1": hashlib.sha256(finding.id.encode()).hexdigest()[:32]},
        "properties": {
            "id": finding.id,
            "status": finding.status,
            "severity": finding.severity.word if finding.severity is not None else None,
        },
        "locations": _locations(finding, result),
    }
    if finding.accepted:
        reason = f"{finding.accepted.reason} (until {finding.accepted.until})"
        shown["suppressions"] = [{"kind": "external", "status": "accepted", "justification": reason}]
    return shown


def _word(finding: Finding) -> str | None:
    return finding.severity.word if finding.severity is not None else None


def _kind(finding: Finding) -> dict[str, str]:
    """A finding fails; near chance is for information; what was not scored is open, never a pass."""
    if finding.status == "skipped":
        return {"kind": "notApplicable", "level": "none"}
    if finding.status != "ok":
        return {"kind": "open", "level": "none"}
    if finding.level == Severity.INFO:
        return {"kind": "informational", "level": "none"}
    return {"kind": "fail", "level": LEVELS[finding.level.word]}


def _message(finding: Finding) -> str:
    score = finding.score
    start = f"{finding.title} by {finding.adversary}: "
    if finding.status != "ok":
        return f"{start}{finding.status}, {finding.why}"
    helps = f" What helps: {finding.defenses.advice}" if finding.defenses else ""
    return f"{start}{score.title} {score.value} [{score.low}, {score.high}], chance {score.chance}, n {score.n}.{helps}"


def _locations(finding: Finding, result: AuditResult) -> list[dict[str, Any]]:
    """Where the plan names the attack or its adversary, else where it describes the federation."""
    name = result.provenance.plan_file
    if name is None:
        return []
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    for place, value in ((("attacks",), finding.attack), (("adversaries",), finding.adversary)):
        if f'"{value}"' in text:
            line = line_of(text, place, value)
            break
    else:
        line = line_of(text, ("federation",))
    where = {"artifactLocation": {"uri": _uri(name)}, "region": {"startLine": line or 1}}
    return [{"physicalLocation": where}]


def _uri(name: str) -> str:
    """Relative, with forward slashes and nothing that a URI may not hold."""
    from urllib.parse import quote

    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return quote(path.as_posix())
