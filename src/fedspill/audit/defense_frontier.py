"""The defense frontier: for each leak, what every candidate defense leaves of it and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from fedspill.audit.advice import GOOD_ENOUGH, MOST_LOST
from fedspill.audit.outcomes import RecordOutcome
from fedspill.audit.result import (
    AccuracyFigures,
    DefensesTried,
    DefenseTrial,
    Finding,
    LeakSummary,
    SettingSummary,
    rounded,
)
from fedspill.audit.severity import Severity
from fedspill.audit.target import DefenseSetting
from fedspill.deployment.plan import Plan
from fedspill.intervals import CONFIDENCE
from fedspill.registry import entries, find, load, make, options_of


def candidates_of(plan: Plan) -> list[DefenseSetting]:
    """The settings to try: those of the plan, else every registered defense at the strengths it brings."""
    if plan.candidates is not None:
        chosen = [(candidate.name, candidate.strengths) for candidate in plan.candidates]
    else:
        private = plan.federation.has_private_towers
        names = [entry.name for entry in entries("defenses")]
        chosen = [(name, None) for name in names if load("defenses", name).of_private_towers == private]
    settings = []
    for name, given in chosen:
        strengths = given if given is not None else load("defenses", name).strengths
        for options in strengths:
            made = options_of(make("defenses", name, options))
            settings.append(DefenseSetting.one(name, {key: made[key] for key in options}))
    return list(dict.fromkeys(settings))


@dataclass(frozen=True)
class Accuracy:
    """Share of test samples that the federation's model has right, pooled over repeats."""

    right: int
    tested: int

    @staticmethod
    def of(outcomes: Sequence[RecordOutcome]) -> Accuracy | None:
        trained = [outcome for outcome in outcomes if outcome.status == "ok"]
        if not sum(outcome.tested for outcome in trained):
            return None
        return Accuracy(sum(outcome.right for outcome in trained), sum(outcome.tested for outcome in trained))

    @property
    def value(self) -> float:
        return self.right / self.tested

    def figures(self) -> AccuracyFigures:
        """With Wilson's interval over test samples."""
        interval = stats.binomtest(self.right, self.tested).proportion_ci(CONFIDENCE, method="wilson")
        return AccuracyFigures(value=self.value, low=float(interval.low), high=float(interval.high), n=self.tested)


@dataclass(frozen=True)
class Point:
    """One setting: what the attack still gets, and what the model is still worth."""

    setting: DefenseSetting
    finding: Finding
    accuracy: Accuracy | None
    epsilon: float | None
    delta: float | None

    @property
    def adaptive(self) -> bool:
        """Whether the attack asked for the defense's parameters and got them; else a better one may get more."""
        return "defense" in self.finding.used

    def trial(self, before: Accuracy | None) -> DefenseTrial:
        return DefenseTrial(
            setting=self.setting.label,
            defense=self.setting.chosen[0].name,
            options=dict(self.setting.chosen[0].options),
            status=self.finding.status,
            state=self.finding.state,
            why=self.finding.why,
            severity=self.finding.severity,
            advantage=self.finding.advantage,
            score=self.finding.score,
            accuracy=self.accuracy.figures() if self.accuracy else None,
            accuracy_change=None if before is None or self.accuracy is None else self.accuracy.value - before.value,
            epsilon=self.epsilon,
            delta=self.delta,
            adaptive=self.adaptive,
        )


def frontier(finding: Finding, before: Accuracy | None, points: Sequence[Point]) -> DefensesTried:
    """All points and the advice."""
    best = best_of(points, before)
    return DefensesTried(
        tried=[point.trial(before) for point in points],
        best=best.setting.label if best else None,
        advice=advice(finding, before, points, best),
    )


def best_of(points: Sequence[Point], before: Accuracy | None = None) -> Point | None:
    """Of those that leave little and cost little, the most accurate; of equals, the one that leaves least."""
    cheap = [point for point in closing(points) if _lost(before, point) <= MOST_LOST]
    return max(cheap, key=_rank, default=None)


def closing(points: Sequence[Point]) -> list[Point]:
    """Those that bring the finding down far enough, whatever they cost. What is undecided may still be as bad."""
    decided = [point for point in points if point.finding.status == "ok" and point.finding.state != "undecided"]
    return [point for point in decided if point.finding.gained < GOOD_ENOUGH and point.accuracy]


def _rank(point: Point) -> tuple[float, float]:
    return (point.accuracy.value if point.accuracy else 0.0, -point.finding.gained)


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
        least = min(measured, key=lambda p: p.finding.gained)
        dear = max(closing(points), key=_rank, default=None)
        said = (
            f"None of the {len(points)} settings tried surely brings its advantage below {GOOD_ENOUGH} "
            f"at {100 * MOST_LOST:.0f} points of accuracy or less; "
        )
        if dear is not None:
            return f"{said}the cheapest that brings it down is {dear.setting.label}{_cost(before, dear)}."
        open_ = ", undecided" if least.finding.state == "undecided" else ""
        left = f"{rounded(least.finding.gained)}{open_}{_cost(before, least)}"
        return f"{said}least is left by {least.setting.label}: {left}."
    knew = "against an attacker who knows it" if best.adaptive else "against an attacker who does not know of it"
    return (
        f"{best.setting.label}: {finding.level.word} to {best.finding.level.word}{_cost(before, best)}"
        f"{_budget(best.epsilon, best.delta)}; tested {knew}."
    )


def _budget(epsilon: float | None, delta: float | None) -> str:
    """The mechanism's epsilon, for whoever runs it with secure noise: an audit's own noise is seeded."""
    if epsilon is None:
        return ""
    return f", epsilon {rounded(epsilon)} at delta {delta:g} with secure noise"


def summarise_leaks(findings: Sequence[Finding]) -> list[LeakSummary]:
    """Per leak, what each setting leaves to the best attack: a defense is as good as its worst case."""
    tried: dict[str, dict[str, list[DefenseTrial]]] = {}
    before: dict[str, Severity] = {}
    for finding in findings:
        if not finding.defenses:
            continue
        before[finding.family] = max(before.get(finding.family, Severity.INFO), finding.level)
        for point in finding.defenses.tried:
            tried.setdefault(finding.family, {}).setdefault(point.setting, []).append(point)
    rows = []
    for family, settings in tried.items():
        left = [_left(setting, points) for setting, points in settings.items()]
        rows.append(LeakSummary(family=family, settings=left, advice=_leak_advice(before[family], left)))
    return rows


def _left(setting: str, points: Sequence[DefenseTrial]) -> SettingSummary:
    """The worst that any attack still gets; null when one of them could not be measured, or none could be run.

    An attack is skipped under a defense when its adversary no longer sees what it needs, single updates for example.
    """
    run = [point for point in points if point.status != "skipped"]
    scored = bool(run) and all(point.status == "ok" for point in run)
    worst = max(run, key=lambda point: rounded(point.advantage) or 0.0) if scored else None
    return SettingSummary(
        setting=setting,
        defense=points[0].defense,
        options=points[0].options,
        undecided=any(point.state == "undecided" for point in run),
        title=find("defenses", points[0].defense).title,
        severity=worst.severity if worst else None,
        advantage=worst.advantage if worst else None,
        attacks=len(points),
        blinded=len(points) - len(run),
        accuracy=points[0].accuracy,
        accuracy_change=points[0].accuracy_change,
        epsilon=points[0].epsilon,
        adaptive=bool(run) and all(point.adaptive for point in run),
    )


def _leak_advice(before: Severity, left: Sequence[SettingSummary]) -> str:
    measured = [row for row in left if row.severity is not None and row.accuracy]
    blind = [row.setting for row in left if row.blinded == row.attacks]
    unseen = f" No attack finds what it needs under {', '.join(blind)}." if blind else ""
    if not measured:
        return f"none of the {len(left)} settings tried could be measured.{unseen}"
    enough = [row for row in measured if _gained(row) < GOOD_ENOUGH and not row.undecided]
    cheap = [row for row in enough if (rounded(row.accuracy_change) or 0.0) >= -MOST_LOST]
    none = (
        f"none of the {len(left)} settings tried surely brings every attack's advantage below {GOOD_ENOUGH} "
        f"at {100 * MOST_LOST:.0f} points of accuracy or less; "
    )
    if cheap:
        best = max(cheap, key=_most_accurate)
        start = f"{best.setting} ({best.title}), {before.word} to {(best.severity or Severity.INFO).word}"
    elif enough:
        best = max(enough, key=_most_accurate)
        start = f"{none}the cheapest that brings it down is {best.setting}"
    else:
        best = min(measured, key=_gained)
        start = f"{none}least is left by {best.setting}: {rounded(best.advantage)}{', undecided' * best.undecided}"
    knew = "attackers who know it" if best.adaptive else "attackers who do not all know of it"
    return f"{start}, accuracy {100 * (rounded(best.accuracy_change) or 0.0):+.1f} points, against {knew}.{unseen}"


def _gained(row: SettingSummary) -> float:
    return rounded(row.advantage) or 0.0


def _most_accurate(row: SettingSummary) -> tuple[float, float]:
    return ((rounded(row.accuracy.value) or 0.0) if row.accuracy else 0.0, -_gained(row))


def _cost(before: Accuracy | None, point: Point) -> str:
    if before is None or point.accuracy is None:
        return ""
    return f", accuracy {100 * (point.accuracy.value - before.value):+.1f} points"


def guarantees(records: Sequence[RecordOutcome]) -> tuple[float | None, float | None]:
    """The claimed epsilon and delta: of several repeats the weakest claim."""
    epsilons = [outcome.epsilon for outcome in records if outcome.epsilon is not None]
    deltas = [outcome.delta for outcome in records if outcome.delta is not None]
    return max(epsilons, default=None), max(deltas, default=None)
