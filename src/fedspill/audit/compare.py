"""Compare two audits: what is new, what is fixed, what changed by more than noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fedspill.audit.older_results import completed
from fedspill.audit.result import SCHEMA, AuditResult, Finding, ScoreFigures, rounded
from fedspill.audit.run_audit import result_of
from fedspill.audit.severity import Severity
from fedspill.differences import beyond_noise, difference
from fedspill.errors import InputRefused
from fedspill.files import read_json
from fedspill.intervals import ENOUGH_FEDERATIONS

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
    real = _real_differences(old, new)
    found = [
        _difference(name, old.get(name), new.get(name), real.get(name)) for name in sorted(old.keys() | new.keys())
    ]
    return sorted(found, key=lambda d: (ORDER.index(d.change), -_level(new.get(d.id)), d.id))


def too_few_federations(before: AuditResult, after: AuditResult) -> str:
    """A sentence for the page where the audits cannot tell a change from another draw; else empty."""
    shared = {finding.id for finding in before.findings} & {finding.id for finding in after.findings}
    counts = [
        len(finding.score.federations)
        for result in (before, after)
        for finding in result.findings
        if finding.id in shared and finding.status == "ok"
    ]
    if not counts or min(counts) >= ENOUGH_FEDERATIONS:
        return ""
    return (
        f"Too few federations to compare: {min(counts)} where {ENOUGH_FEDERATIONS} are needed to tell a change from "
        f"another draw of the same plan. Set repeats = {ENOUGH_FEDERATIONS} or more in both plans."
    )


def _real_differences(old: Mapping[str, Finding], new: Mapping[str, Finding]) -> dict[str, bool]:
    """For every finding that both have scored, whether it changed beyond noise, by Holm over all of them."""
    tested: dict[str, float] = {}
    for name in sorted(old.keys() & new.keys()):
        was, now = _scored(old[name]), _scored(new[name])
        if was is None or now is None:
            continue
        tested[name] = _p_value(was, now)
    return dict(zip(tested, beyond_noise(list(tested.values())), strict=True))


def _p_value(was: ScoreFigures, now: ScoreFigures) -> float:
    """Of no change. A result before 0.2 keeps no federations: intervals that do not meet are then the test."""
    before, after = was.over_federations(), now.over_federations()
    if before is None or after is None:
        return float(not _apart(was, now))
    return difference(before, after).p


def _apart(was: ScoreFigures, now: ScoreFigures) -> bool:
    return _low(now) > _high(was) or _high(now) < _low(was)


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


def _difference(name: str, old: Finding | None, new: Finding | None, real: bool | None) -> Difference:
    severity = new.severity.word if new is not None and new.severity is not None else None
    return Difference(name, _change(old, new, real), _shown(old), _shown(new), severity)


def _change(old: Finding | None, new: Finding | None, real: bool | None) -> Change:
    """A leak above chance is new or fixed only beyond noise: another draw of the same plan is no change."""
    was, now = _scored(old), _scored(new)
    if was is None and now is None:
        return "same"
    if was is None:
        return "new" if _level(new) > Severity.INFO else "same"
    if now is None:
        return "gone" if new is None else "lost"  # no longer in the audit; or in it, without a score
    if not real:
        return "same"
    if _merit(now) > _merit(was):
        return "new" if _level(old) == Severity.INFO < _level(new) else "worse"
    return "fixed" if _level(new) == Severity.INFO < _level(old) else "better"


def _merit(score: ScoreFigures) -> float:
    """How far from perfect, as a number that is higher for a better guess."""
    return -abs((score.perfect or 0.0) - (score.value or 0.0))


def _scored(finding: Finding | None) -> ScoreFigures | None:
    return finding.score if finding and finding.status == "ok" else None


def _low(score: ScoreFigures) -> float:
    return -math.inf if score.low is None else score.low


def _high(score: ScoreFigures) -> float:
    return math.inf if score.high is None else score.high


def _level(finding: Finding | None) -> Severity:
    return finding.level if finding else Severity.INFO


def _shown(finding: Finding | None) -> str:
    if finding is None:
        return "not in the audit"
    if finding.status != "ok":
        return finding.status
    score = finding.score
    return f"{finding.level.word} {rounded(score.value)} [{rounded(score.low)}, {rounded(score.high)}]"
