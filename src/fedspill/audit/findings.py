"""Finding: what one attack by one adversary came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedspill.audit.severity import Severity
from fedspill.metrics.base import Score


@dataclass(frozen=True)
class Finding:
    """A scored attack, or the reason why there is no score."""

    attack: str
    title: str
    adversary: str
    family: str
    status: Literal["ok", "unscored", "errored", "skipped"]
    severity: Severity = Severity.INFO
    metric: str = ""
    score: Score = field(default_factory=lambda: Score.unscored("not run"))
    why: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        score = self.score
        scored = self.status == "ok"
        return {
            "attack": self.attack,
            "title": self.title,
            "adversary": self.adversary,
            "family": self.family,
            "severity": self.severity.word if scored else None,
            "status": self.status,
            "score": {
                "metric": self.metric,
                "value": score.value if scored else None,
                "low": score.low if scored else None,
                "high": score.high if scored else None,
                "n": score.n,
                "chance": score.chance if scored else None,
            },
            "why": self.why,
            "notes": list(self.notes),
        }


def ranked(findings: list[Finding]) -> list[Finding]:
    """Worst first; what was not scored comes last and never counts as passed."""
    order = {"ok": 0, "unscored": 1, "errored": 2, "skipped": 3}
    return sorted(
        findings, key=lambda f: (order[f.status], -f.severity, -f.score.low if f.status == "ok" else 0, f.attack)
    )
