"""Compare two audits: what is new, what is fixed, what changed by more than noise."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedspill.audit.result import SCHEMA, AuditResult, Finding, ScoreFigures, rounded
from fedspill.audit.run_audit import result_of
from fedspill.audit.severity import Severity
from fedspill.errors import InputRefused
from fedspill.files import read_json

Change = Literal["new", "worse", "fixed", "better", "same", "lost", "gone"]
ORDER: tuple[Change, ...] = ("new", "worse", "lost", "gone", "fixed", "better", "same")


@dataclass(frozen=True)
class Difference:
    """What became of one finding."""

    id: str
    change: Change
    before: str
    after: str
    severity: str | None  # now

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_result(path: Path) -> AuditResult:
    """The result in an audit folder, or in a JSON file that an audit wrote."""
    if path.is_dir():
        return result_of(path)
    content = read_json(path)
    try:
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            return AuditResult.model_validate(content)
    except ValidationError:
        pass
    raise InputRefused(f"{path} is not the JSON of an audit of schema {SCHEMA}.")


def compare(before: AuditResult, after: AuditResult) -> list[Difference]:
    """One line per finding of either audit, the worst news first."""
    old = {finding.id: finding for finding in before.findings}
    new = {finding.id: finding for finding in after.findings}
    found = [_difference(name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    return sorted(found, key=lambda d: (ORDER.index(d.change), -_level(new.get(d.id)), d.id))


def _difference(name: str, old: Finding | None, new: Finding | None) -> Difference:
    severity = new.severity.word if new is not None and new.severity is not None else None
    return Difference(name, _change(old, new), _shown(old), _shown(new), severity)


def _change(old: Finding | None, new: Finding | None) -> Change:
    """A leak above chance is new or fixed only beyond noise: where both are scored, their intervals must not meet."""
    was, now = _scored(old), _scored(new)
    if was is None and now is None:
        return "same"
    if was is None:
        return "new" if _level(new) > Severity.INFO else "same"
    if now is None:
        return "gone" if new is None else "lost"  # no longer in the audit; or in it, without a score
    apart = _low(now) > _high(was) or _high(now) < _low(was)
    if not apart:
        return "same"
    more = _advantage(new) > _advantage(old)
    if more:
        return "new" if _level(old) == Severity.INFO < _level(new) else "worse"
    return "fixed" if _level(new) == Severity.INFO < _level(old) else "better"


def _scored(finding: Finding | None) -> ScoreFigures | None:
    return finding.score if finding and finding.status == "ok" else None


def _low(score: ScoreFigures) -> float:
    return -math.inf if score.low is None else score.low


def _high(score: ScoreFigures) -> float:
    return math.inf if score.high is None else score.high


def _advantage(finding: Finding | None) -> float:
    return finding.gained if finding else 0.0


def _level(finding: Finding | None) -> Severity:
    return finding.level if finding else Severity.INFO


def _shown(finding: Finding | None) -> str:
    if finding is None:
        return "not in the audit"
    if finding.status != "ok":
        return finding.status
    score = finding.score
    return f"{finding.level.word} {rounded(score.value)} [{rounded(score.low)}, {rounded(score.high)}]"
