"""Finding: what one attack by one adversary came to, over all repeats."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from fedspill.audit.severity import Severity
from fedspill.metrics.base import Score
from fedspill.registry import load

Status = Literal["ok", "unscored", "errored", "skipped"]
ORDER: dict[str, int] = {"ok": 0, "unscored": 1, "errored": 2, "skipped": 3}


@dataclass(frozen=True)
class Finding:
    """A scored attack, or the reason why there is no score."""

    id: str
    attack: str
    title: str
    adversary: str
    family: str
    status: Status
    severity: Severity = Severity.INFO
    advantage: float = 0.0
    metric: str = ""
    score: Score = field(default_factory=lambda: Score.unscored("not run"))
    other_scores: tuple[tuple[str, Score], ...] = ()
    why: str = ""  # of one that is not scored
    notes: tuple[str, ...] = ()
    used: tuple[str, ...] = ()  # the knowledge that the attack asked for
    options: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[dict[str, Any], ...] = ()
    errors: int = 0  # repeats that gave nothing

    def as_json(self) -> dict[str, Any]:
        scored = self.status == "ok"
        return {
            "id": self.id,
            "attack": self.attack,
            "title": self.title,
            "adversary": self.adversary,
            "family": self.family,
            "severity": self.severity.word if scored else None,
            "status": self.status,
            "advantage": rounded(self.advantage) if scored else None,
            "score": score_json(self.metric, self.score, scored),
            "other_scores": [score_json(metric, score, True) for metric, score in self.other_scores],
            "why": self.why,
            "notes": list(self.notes),
            "used": list(self.used),
            "options": self.options,
            "evidence": list(self.evidence),
        }


def score_json(metric: str, score: Score, scored: bool) -> dict[str, Any]:
    """Numbers of an unscored one are null, never zero."""
    scored = scored and score.status == "ok"
    numbers = {"value": score.value, "low": score.low, "high": score.high, "chance": score.chance}
    return {
        "metric": metric,
        "title": load("metrics", metric).title if metric else "",
        "perfect": load("metrics", metric).perfect if metric else None,
        **{name: rounded(number) if scored else None for name, number in numbers.items()},
        "n": score.n,
    }


def rounded(value: float) -> float | None:
    """Four decimals, or three digits of a small number: what is printed is what is in the JSON. Infinite is null."""
    if not math.isfinite(value):
        return None
    short = round(value, 4) if abs(value) >= 0.001 or value == 0 else float(f"{value:.3g}")
    return short + 0.0  # no minus zero


def ranked(findings: list[Finding]) -> list[Finding]:
    """Worst first; what was not scored comes last and never counts as passed."""
    return sorted(findings, key=lambda f: (ORDER[f.status], -f.severity, -f.advantage, f.id))
