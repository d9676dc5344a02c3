"""SARIF 2.1.0, for code-scanning pages: one rule per attack, one result per finding, at its line of the plan file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedspill.audit.result import AuditResult, DefenseCheck, Finding, LeakRow, PrivacyClaim
from fedspill.audit.severity import Severity
from fedspill.deployment.toml_lines import line_of
from fedspill.report.clean import cleaned
from fedspill.report.first_screen import claim_words

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "none"}
# What GitHub sorts by: the middle of each of its own bands.
SECURITY = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.5", "info": "0.0"}


DEFENSE_OFF = "defense-off"
CLAIM_VIOLATED = "privacy-claim-violated"
# The public lists that leaks are nearest to; none of them speaks of federated learning.
TAXONOMIES = {
    "NIST AI 100-2": ("NIST AI 100-2e2025", "https://doi.org/10.6028/NIST.AI.100-2e2025"),
    "MITRE ATLAS": ("MITRE ATLAS 5.6", "https://atlas.mitre.org"),
    "OWASP ML": (
        "OWASP Machine Learning Security Top Ten 2023",
        "https://owasp.org/www-project-machine-learning-security-top-10",
    ),
}


def render(result: AuditResult, *, with_skipped: bool = False) -> str:
    """Findings as results; attacks that do not apply are left out unless asked for."""
    result = cleaned(result)
    findings = [finding for finding in result.findings if with_skipped or finding.status != "skipped"]
    worst: dict[str, Severity] = {}
    for finding in findings:  # worst first, so the first severity of an attack is its worst
        if finding.severity is not None:
            worst.setdefault(finding.attack, finding.severity)
    leaks = {row.leak: row for row in result.leaks}
    rules = {
        finding.attack: _rule(finding, worst.get(finding.attack, Severity.INFO), leaks.get(finding.family))
        for finding in findings
    }
    off = [check for check in result.defense_checks if check.on is False]
    if off:
        rules[DEFENSE_OFF] = _defense_rule()
    violated = [claim for claim in result.privacy_claims if claim.verdict == "violated"]
    if violated:
        rules[CLAIM_VIOLATED] = _claim_rule()
    order = {name: index for index, name in enumerate(rules)}
    results = [_result(finding, order, result) for finding in findings]
    results += [_off(check, order, result) for check in off]
    results += [_violated(claim, order, result) for claim in violated]
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "fedspill",
                        "version": result.fedspill,
                        "rules": list(rules.values()),
                        "supportedTaxonomies": [{"name": name} for name in _lists(result.leaks)],
                    },
                },
                "taxonomies": _taxonomies(result.leaks),
                "invocations": [{"executionSuccessful": result.verdict.complete}],
                "results": results,
            }
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _lists(rows: Sequence[LeakRow]) -> list[str]:
    return [name for name in TAXONOMIES if any(name in row.taxonomy for row in rows)]


def _taxonomies(rows: Sequence[LeakRow]) -> list[dict[str, Any]]:
    """The entries of public lists that some leak of this audit is nearest to."""
    found = []
    for name in _lists(rows):
        full, link = TAXONOMIES[name]
        ids = sorted({row.taxonomy[name] for row in rows if name in row.taxonomy})
        taxa = [{"id": entry, "shortDescription": {"text": f"nearest entry of {full}"}} for entry in ids]
        found.append({"name": name, "fullName": full, "informationUri": link, "taxa": taxa})
    return found


def _rule(finding: Finding, worst: Severity, row: LeakRow | None) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.attack,
        "shortDescription": {"text": finding.title},
        "properties": {
            "tags": ["privacy", "federated-learning", finding.family],
            "security-severity": SECURITY[worst.word],
        },
    }
    if row is None:
        return rule
    nearest = ", ".join(f"{name} {entry}" for name, entry in row.taxonomy.items())
    words = f"{row.title}. {row.question}" + (f" Nearest in public lists: {nearest}." if nearest else "")
    return rule | {
        "fullDescription": {"text": words},
        "help": {
            "text": f"{words} The audit's report shows the evidence, who needs what, and what helps; "
            f"`fedspill explain {row.leak}` says how it is measured."
        },
        "relationships": [
            {"target": {"id": entry, "toolComponent": {"name": name}}, "kinds": ["relevant"]}
            for name, entry in row.taxonomy.items()
            if name in TAXONOMIES
        ],
    }


def _defense_rule() -> dict[str, Any]:
    return {
        "id": DEFENSE_OFF,
        "shortDescription": {"text": "A configured defense is off"},
        "help": {"text": "What clients sent does not look as if it were on. Install it, or take it out of the plan."},
        "properties": {"tags": ["privacy", "federated-learning", "defense"], "security-severity": SECURITY["critical"]},
    }


def _claim_rule() -> dict[str, Any]:
    return {
        "id": CLAIM_VIOLATED,
        "shortDescription": {"text": "A claim of differential privacy is violated"},
        "help": {"text": "Epsilon is surely larger than claimed. The audit's report names the test that showed it."},
        "properties": {"tags": ["privacy", "federated-learning", "defense"], "security-severity": SECURITY["critical"]},
    }


def _off(check: DefenseCheck, order: Mapping[str, int], result: AuditResult) -> dict[str, Any]:
    return {
        "ruleId": DEFENSE_OFF,
        "ruleIndex": order[DEFENSE_OFF],
        "kind": "fail",
        "level": "error",
        "message": {"text": f"{check.defense} is configured but off: {check.why}"},
        "partialFingerprints": {"fedspill/v1": hashlib.sha256(f"off/{check.defense}".encode()).hexdigest()[:32]},
        "properties": {"id": f"{DEFENSE_OFF}/{check.defense}", "status": "ok", "severity": "critical"},
        "locations": _place(result, ((("defenses",), check.defense),), ("defenses",)),
    }


def _violated(claim: PrivacyClaim, order: Mapping[str, int], result: AuditResult) -> dict[str, Any]:
    name = f"{CLAIM_VIOLATED}/{claim.defense}"
    return {
        "ruleId": CLAIM_VIOLATED,
        "ruleIndex": order[CLAIM_VIOLATED],
        "kind": "fail",
        "level": "error",
        "message": {"text": claim_words(claim)},
        "partialFingerprints": {"fedspill/v1": hashlib.sha256(name.encode()).hexdigest()[:32]},
        "properties": {"id": name, "status": "ok", "severity": "critical"},
        "locations": _place(result, ((("defenses",), claim.defense),), ("defenses",)),
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
            "state": finding.state,
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
    if finding.reading is not None and finding.status == "read":
        return f"{start}reads {finding.reading.summary}; nothing is known to hold that against."
    if finding.status != "ok":
        return f"{start}{finding.status}, {finding.why}"
    helps = f" What helps: {finding.defenses.advice}" if finding.defenses else ""
    return f"{start}{score.title} {score.value} [{score.low}, {score.high}], chance {score.chance}, n {score.n}.{helps}"


def _locations(finding: Finding, result: AuditResult) -> list[dict[str, Any]]:
    """Where the plan names the attack or its adversary, else where it describes the federation."""
    named = ((("attacks",), finding.attack), (("adversaries",), finding.adversary))
    return _place(result, named, ("federation",))


def _place(
    result: AuditResult, named: Sequence[tuple[tuple[str, ...], str]], otherwise: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The line of the plan file that holds the first value that it names."""
    name = result.provenance.plan_file
    if name is None:
        return []
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    for place, value in named:
        if f'"{value}"' in text:
            line = line_of(text, place, value)
            break
    else:
        line = line_of(text, otherwise)
    where = {"artifactLocation": {"uri": _uri(name)}, "region": {"startLine": line or 1}}
    return [{"physicalLocation": where}]


def _uri(name: str) -> str:
    """Relative, with forward slashes and nothing that a URI may not hold."""
    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return quote(path.as_posix())
