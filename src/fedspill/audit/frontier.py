"""The defense frontier: for each leak, what every candidate defense leaves of it and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from fedspill.audit.bench import Setting
from fedspill.audit.findings import Finding, rounded, score_json
from fedspill.audit.jobs import Outcome
from fedspill.audit.plan import Plan
from fedspill.audit.severity import Severity
from fedspill.metrics.base import CONFIDENCE
from fedspill.registry import entries, find, load, make, options_of

# What a recommended defense must leave at most, of the way from chance to a perfect guess. Not the severity: that is
# milder for adversaries that need much, and a defense that helps only because of who attacks is none.
GOOD_ENOUGH = 0.1
MOST_LOST = 0.02  # of accuracy: a defense that costs more is named, not recommended


def candidates_of(plan: Plan) -> list[Setting]:
    """The settings to try: those of the plan, else every registered defense at the strengths it brings."""
    if plan.candidates is not None:
        chosen = [(candidate.name, candidate.strengths) for candidate in plan.candidates]
    else:
        chosen = [(entry.name, None) for entry in entries("defenses")]
    settings = []
    for name, given in chosen:
        strengths = given if given is not None else load("defenses", name).strengths
        for options in strengths:
            made = options_of(make("defenses", name, options))
            settings.append(Setting(name, tuple(sorted((key, made[key]) for key in options))))
    return list(dict.fromkeys(settings))


@dataclass(frozen=True)
class Accuracy:
    """Share of test samples that the federation's model has right, pooled over repeats."""

    right: int
    tested: int

    @staticmethod
    def of(outcomes: Sequence[Outcome]) -> Accuracy | None:
        trained = [outcome for outcome in outcomes if outcome["status"] == "ok"]
        if not trained or not sum(outcome["tested"] for outcome in trained):
            return None
        return Accuracy(sum(o["right"] for o in trained), sum(o["tested"] for o in trained))

    @property
    def value(self) -> float:
        return self.right / self.tested

    def as_json(self) -> dict[str, Any]:
        """Wilson's interval over test samples."""
        interval = stats.binomtest(self.right, self.tested).proportion_ci(CONFIDENCE, method="wilson")
        return {
            "value": rounded(self.value),
            "low": rounded(float(interval.low)),
            "high": rounded(float(interval.high)),
            "n": self.tested,
        }


@dataclass(frozen=True)
class Point:
    """One setting: what the attack still gets, and what the model is still worth."""

    setting: Setting
    finding: Finding
    accuracy: Accuracy | None
    epsilon: float | None
    delta: float | None

    @property
    def adaptive(self) -> bool:
        """Whether the attack asked for the defense's parameters and got them; else a better one may get more."""
        return "defense" in self.finding.used

    def as_json(self, before: Accuracy | None) -> dict[str, Any]:
        scored = self.finding.status == "ok"
        change = None if before is None or self.accuracy is None else self.accuracy.value - before.value
        return {
            "setting": self.setting.label,
            "defense": self.setting.defense,
            "options": dict(self.setting.options),
            "status": self.finding.status,
            "why": self.finding.why,
            "severity": self.finding.severity.word if scored else None,
            "advantage": rounded(self.finding.advantage) if scored else None,
            "score": score_json(self.finding.metric, self.finding.score, scored),
            "accuracy": self.accuracy.as_json() if self.accuracy else None,
            "accuracy_change": None if change is None else rounded(change),
            "epsilon": None if self.epsilon is None else rounded(self.epsilon),
            "delta": self.delta,
            "adaptive": self.adaptive,
        }


def frontier_json(finding: Finding, before: Accuracy | None, points: Sequence[Point]) -> dict[str, Any]:
    """All points and the advice."""
    best = best_of(points, before)
    return {
        "tried": [point.as_json(before) for point in points],
        "best": best.setting.label if best else None,
        "advice": advice(finding, before, points, best),
    }


def best_of(points: Sequence[Point], before: Accuracy | None = None) -> Point | None:
    """Of those that leave little and cost little, the most accurate; of equals, the one that leaves least."""
    cheap = [point for point in closing(points) if _lost(before, point) <= MOST_LOST]
    return max(cheap, key=_rank, default=None)


def closing(points: Sequence[Point]) -> list[Point]:
    """Those that bring the finding down far enough, whatever they cost."""
    return [p for p in points if p.finding.status == "ok" and p.finding.advantage < GOOD_ENOUGH and p.accuracy]


def _rank(point: Point) -> tuple[float, float]:
    return (point.accuracy.value if point.accuracy else 0.0, -point.finding.advantage)


def _lost(before: Accuracy | None, point: Point) -> float:
    return 0.0 if before is None or point.accuracy is None else before.value - point.accuracy.value


def advice(finding: Finding, before: Accuracy | None, points: Sequence[Point], best: Point | None) -> str:
    """One recommendation with its reason, or the plain statement that none of those tried does."""
    measured = [point for point in points if point.finding.status == "ok"]
    if not points:
        return "No candidate defense was tried."
    if not measured:
        return f"None of the {len(points)} settings tried could be measured."
    if best is None:
        least = min(measured, key=lambda p: p.finding.advantage)
        dear = max(closing(points), key=_rank, default=None)
        said = (
            f"None of the {len(points)} settings tried brings its advantage below {GOOD_ENOUGH} "
            f"at {100 * MOST_LOST:.0f} points of accuracy or less; "
        )
        if dear is not None:
            return f"{said}the cheapest that brings it down is {dear.setting.label}{_cost(before, dear)}."
        return (
            f"{said}least is left by {least.setting.label}: {rounded(least.finding.advantage)}{_cost(before, least)}."
        )
    knew = "against an attacker who knows it" if best.adaptive else "against an attacker who does not know of it"
    return (
        f"{best.setting.label}: {finding.severity.word} to {best.finding.severity.word}{_cost(before, best)}"
        f"{_budget(best.epsilon, best.delta)}; tested {knew}."
    )


def _budget(epsilon: float | None, delta: float | None) -> str:
    """The mechanism's epsilon, for whoever runs it with secure noise: an audit's own noise is seeded."""
    if epsilon is None:
        return ""
    return f", epsilon {rounded(epsilon)} at delta {delta:g} with secure noise"


def families_json(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per leak family, what each setting leaves to the best attack: a defense is as good as its worst case."""
    tried: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    before: dict[str, Severity] = {}
    for finding in findings:
        if not finding["defenses"]:
            continue
        family = finding["family"]
        before[family] = max(before.get(family, Severity.INFO), Severity[finding["severity"].upper()])
        for point in finding["defenses"]["tried"]:
            tried.setdefault(family, {}).setdefault(point["setting"], []).append(point)
    rows = []
    for family, settings in tried.items():
        left = [_left(setting, points) for setting, points in settings.items()]
        rows.append({"family": family, "settings": left, "advice": _family_advice(before[family], left)})
    return rows


def _left(setting: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The worst that any attack still gets; null when one of them could not be measured, or none could be run.

    An attack is skipped under a defense when its adversary no longer sees what it needs, single updates for example.
    """
    run = [point for point in points if point["status"] != "skipped"]
    scored = bool(run) and all(point["status"] == "ok" for point in run)
    worst = max(run, key=lambda point: float(point["advantage"])) if scored else None
    return {
        "setting": setting,
        "title": find("defenses", points[0]["defense"]).title,
        "severity": worst["severity"] if worst else None,
        "advantage": worst["advantage"] if worst else None,
        "attacks": len(points),
        "blinded": len(points) - len(run),
        "accuracy": points[0]["accuracy"],
        "accuracy_change": points[0]["accuracy_change"],
        "epsilon": points[0]["epsilon"],
        "adaptive": bool(run) and all(point["adaptive"] for point in run),
    }


def _family_advice(before: Severity, left: Sequence[Mapping[str, Any]]) -> str:
    measured = [row for row in left if row["severity"] and row["accuracy"]]
    blind = [row["setting"] for row in left if row["blinded"] == row["attacks"]]
    unseen = f" No attack finds what it needs under {', '.join(blind)}." if blind else ""
    if not measured:
        return f"none of the {len(left)} settings tried could be measured.{unseen}"
    enough = [row for row in measured if row["advantage"] < GOOD_ENOUGH]
    cheap = [row for row in enough if (row["accuracy_change"] or 0.0) >= -MOST_LOST]
    none = (
        f"none of the {len(left)} settings tried brings every attack's advantage below {GOOD_ENOUGH} "
        f"at {100 * MOST_LOST:.0f} points of accuracy or less; "
    )
    if cheap:
        best = max(cheap, key=lambda row: (row["accuracy"]["value"], -row["advantage"]))
        start = f"{best['setting']} ({best['title']}), {before.word} to {best['severity']}"
    elif enough:
        best = max(enough, key=lambda row: (row["accuracy"]["value"], -row["advantage"]))
        start = f"{none}the cheapest that brings it down is {best['setting']}"
    else:
        best = min(measured, key=lambda row: row["advantage"])
        start = f"{none}least is left by {best['setting']}: {best['advantage']}"
    knew = "attackers who know it" if best["adaptive"] else "attackers who do not all know of it"
    return f"{start}, accuracy {100 * best['accuracy_change']:+.1f} points, against {knew}.{unseen}"


def _cost(before: Accuracy | None, point: Point) -> str:
    if before is None or point.accuracy is None:
        return ""
    return f", accuracy {100 * (point.accuracy.value - before.value):+.1f} points"


def guarantees(records: Sequence[Outcome]) -> Mapping[str, float | None]:
    """The claimed epsilon and delta: of several repeats the weakest claim."""
    epsilons = [outcome["epsilon"] for outcome in records if outcome.get("epsilon") is not None]
    deltas = [outcome["delta"] for outcome in records if outcome.get("delta") is not None]
    return {"epsilon": max(epsilons, default=None), "delta": max(deltas, default=None)}
