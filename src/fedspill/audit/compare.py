"""Compare two audits: what is new, what is fixed, what changed by more than noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedspill.audit.assemble import SCHEMA
from fedspill.audit.runner import result_of
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


def read_result(path: Path) -> dict[str, Any]:
    """The result in an audit folder, or in a JSON file that an audit wrote."""
    if path.is_dir():
        return result_of(path)
    result = read_json(path)
    if not isinstance(result, dict) or result.get("schema") != SCHEMA or not isinstance(result.get("findings"), list):
        raise InputRefused(f"{path} is not the JSON of an audit of schema {SCHEMA}.")
    return result


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """One line per finding of either audit, the worst news first."""
    old = {finding["id"]: finding for finding in before["findings"]}
    new = {finding["id"]: finding for finding in after["findings"]}
    found = [_difference(name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    return sorted(found, key=lambda d: (ORDER.index(d.change), -_level(new.get(d.id)), d.id))


def _difference(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Difference:
    severity = new["severity"] if new else None
    return Difference(name, _change(old, new), _shown(old), _shown(new), severity)


def _change(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change:
    """A leak above chance is new or fixed only beyond noise: where both are scored, their intervals must not meet."""
    was, now = _scored(old), _scored(new)
    if was is None and now is None:
        return "same"
    if was is None:
        return "new" if _level(new) > Severity.INFO else "same"
    if now is None:
        return "gone" if new is None else "lost"  # no longer in the audit; or in it, without a score
    apart = now["low"] > was["high"] or now["high"] < was["low"]
    if not apart:
        return "same"
    more = _advantage(new) > _advantage(old)
    if more:
        return "new" if _level(old) == Severity.INFO < _level(new) else "worse"
    return "fixed" if _level(new) == Severity.INFO < _level(old) else "better"


def _scored(finding: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    score: Mapping[str, Any] | None = finding["score"] if finding and finding["status"] == "ok" else None
    return score


def _advantage(finding: Mapping[str, Any] | None) -> float:
    return float(finding["advantage"]) if finding else 0.0


def _level(finding: Mapping[str, Any] | None) -> Severity:
    return Severity[finding["severity"].upper()] if finding and finding["severity"] else Severity.INFO


def _shown(finding: Mapping[str, Any] | None) -> str:
    if finding is None:
        return "not in the audit"
    score = finding["score"]
    if finding["status"] != "ok":
        return str(finding["status"])
    return f"{finding['severity']} {score['value']} [{score['low']}, {score['high']}]"
