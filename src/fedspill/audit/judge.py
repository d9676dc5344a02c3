"""Judge: from the measurements of all repeats, and the controls, to one finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from fedspill.audit.findings import Finding, rounded
from fedspill.audit.jobs import Outcome
from fedspill.audit.matrix import Pair
from fedspill.audit.severity import advantage, severity
from fedspill.evidence import Curve, from_json, merge
from fedspill.metrics.base import Measured, Metric, Score
from fedspill.registry import make

BINS = 10
WORST = ("errored", "unscored", "skipped")  # of several repeats without a score, the one that is told
NOT_RUN: Outcome = {"status": "unscored", "why": "not run yet"}


def judge(pair: Pair, title: str, family: str, strikes: Sequence[Outcome], control: Outcome | None) -> Finding:
    """Scores pooled over repeats, every origin counted once; without a passed control there is no score."""
    finding = Finding(pair.id, pair.attack, title, pair.adversary, family, "skipped", options=pair.options)
    scored = [outcome for outcome in strikes if outcome["status"] == "ok"]
    others = [outcome for outcome in strikes if outcome["status"] != "ok"]
    finding = replace(finding, errors=sum(outcome["status"] in ("errored", "unscored") for outcome in others))
    if not scored:
        worst = min(others, key=lambda outcome: WORST.index(outcome["status"]), default=NOT_RUN)
        return replace(finding, status=worst["status"], why=worst["why"])
    first = scored[0]
    scores = {name: _pooled(make("metrics", name), name, scored) for name in first["measured"]}
    headline: Metric = make("metrics", first["metric"])
    score = scores.pop(headline.name)
    finding = replace(
        finding,
        metric=headline.name,
        score=score,
        notes=tuple(dict.fromkeys(note for outcome in scored for note in outcome["notes"])),
        used=tuple(sorted({word for outcome in scored for word in outcome["used"]})),
    )
    if others:
        note = f"{len(others)} of {len(strikes)} repeats gave nothing: {others[0]['why']}"
        finding = replace(finding, notes=(*finding.notes, note))
    failed = failed_control(control)
    if score.status != "ok" or failed:
        return replace(finding, status="unscored", why=failed or score.why)
    return replace(
        finding,
        status="ok",
        severity=severity(score, headline.perfect, pair.threat, finding.used),
        advantage=advantage(score, headline.perfect),
        other_scores=tuple((name, other) for name, other in scores.items() if other.status == "ok"),
        evidence=tuple(_evidence(headline, scored)),
    )


def failed_control(control: Outcome | None) -> str:
    """Which control failed and how; empty when both passed."""
    if control is None:
        return "its controls did not run"
    if control["status"] != "ok":
        return f"its controls gave nothing: {control['why']}"
    for name in ("positive", "negative"):
        if not control[name]["passed"]:
            return f"its {name} control failed: it {control[name]['why']}"
    return ""


def _pooled(metric: Metric, name: str, outcomes: Sequence[Outcome]) -> Score:
    score = metric.summarise(Measured.join([_measured(outcome["measured"][name]) for outcome in outcomes]))
    if score.status == "ok" and (rounded(score.low) is None or rounded(score.high) is None):
        return Score.unscored(f"{score.n} measurement is too few for an interval", score.n)
    return score


def _measured(stored: Mapping[str, Any]) -> Measured:
    trials = None if stored["trials"] is None else torch.tensor(stored["trials"])
    return Measured(
        torch.tensor(stored["values"], dtype=torch.float64), torch.tensor(stored["chance"], dtype=torch.float64), trials
    )


def _evidence(metric: Metric, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How the score spreads over origins, and what the metric has to show."""
    values = [value for outcome in outcomes for value in outcome["measured"][metric.name]["values"]]
    drawings = merge([[from_json(item) for item in outcome["evidence"]] for outcome in outcomes])
    return [
        histogram(f"{metric.title}, over origins", values),
        *by_round(metric, outcomes),
        *(_rounded(item.as_json()) for item in drawings),
    ]


def _rounded(drawing: dict[str, Any]) -> dict[str, Any]:
    lists = {key: value for key, value in drawing.items() if isinstance(value, list)}
    return drawing | {key: [rounded(x) if isinstance(x, float) else x for x in value] for key, value in lists.items()}


def by_round(metric: Metric, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The mean score of each round beside chance: leaks come and go as the model is trained."""
    values, chance = defaultdict(list), defaultdict(list)
    for outcome in outcomes:
        measured = outcome["measured"][metric.name]
        if len(outcome["rounds"]) != len(measured["values"]):
            return []
        for number, value, level in zip(outcome["rounds"], measured["values"], measured["chance"], strict=True):
            values[number].append(value)
            chance[number].append(level)
    if len(values) < 2:
        return []
    rounds = sorted(values)
    means = [[rounded(fmean(of[number])) or 0.0 for number in rounds] for of in (values, chance)]
    title = f"{metric.title}, by round"
    return [Curve(title, False, [float(r) for r in rounds], means[0], "round", metric.title, means[1]).as_json()]


def histogram(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Counts in equal steps, over 0 to 1 where all values lie there."""
    inside = min(values) >= 0 and max(values) <= 1
    low, high = (0.0, 1.0) if inside else (min(values), max(values))
    high = high if high > low else low + 1
    counts = torch.histc(torch.tensor(values, dtype=torch.float64), BINS, low, high).long().tolist()
    edges = [rounded(low + (high - low) * step / BINS) for step in range(BINS + 1)]
    return {"kind": "histogram", "title": title, "private": False, "edges": edges, "counts": counts}
