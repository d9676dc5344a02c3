"""Compare two audits: what is new, what is fixed, what changed by more than noise."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedspill.audit.older_results import completed
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
            return completed(AuditResult.model_validate(content))
    except ValidationError:
        pass
    raise InputRefused(f"{path} is not the JSON of an audit of schema {SCHEMA}.")


def compare(before: AuditResult, after: AuditResult) -> list[Difference]:
    """One line per finding of either audit, the worst news first."""
    old = {finding.id: finding for finding in before.findings}
    new = {finding.id: finding for finding in after.findings}
    found = [_difference(name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    return sorted(found, key=lambda d: (ORDER.index(d.change), -_level(new.get(d.id)), d.id))


# The parts of a plan that say what is deployed; two audits that differ there are audits of two deployments.
DEPLOYED = ("data", "model", "partition", "federation", "training", "defenses")
ASKED = ("adversaries", "attacks", "adversary_data", "targets", "seed", "repeats")


@dataclass(frozen=True)
class Apart:
    """In what two audits differ before anything was measured."""

    deployment: tuple[str, ...]  # "training.lr: 0.1 before, 0.2 after"
    audit: tuple[str, ...]

    @property
    def words(self) -> str:
        """One sentence; empty where the audits are alike."""
        if self.deployment:
            return f"These are audits of two different deployments: {'; '.join(self.deployment)}."
        return f"The two audits did not ask alike: {'; '.join(self.audit)}." if self.audit else ""


def apart(before: AuditResult, after: AuditResult) -> Apart:
    """What was changed between the plans; a recording is what it was recorded from."""
    deployment = [line for part in DEPLOYED for line in _changed(part, before.plan.get(part), after.plan.get(part))]
    if before.target != after.target:
        deployment.append(f"a {before.target} before, a {after.target} after")
    if "trace" in (before.target, after.target) and before.deployment != after.deployment:
        deployment.append(f"{before.deployment!r} before, {after.deployment!r} after")
    asked = [line for part in ASKED for line in _changed(part, before.plan.get(part), after.plan.get(part))]
    return Apart(tuple(deployment), tuple(asked))


def _changed(place: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [line for key in keys for line in _changed(f"{place}.{key}", old.get(key), new.get(key))]
    return [] if old == new else [f"{place} {_word(old)} before, {_word(new)} after"]


def _word(value: Any) -> str:
    return "none" if value is None or value == [] else json.dumps(value)


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
