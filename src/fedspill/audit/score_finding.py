"""From the measurements of all repeats, and the controls, to one finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from fedspill.attack_run import Outcome, metrics_of
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.result import Finding, ScoreFigures, rounded
from fedspill.audit.severity import (
    advantage,
    levels_of,
    lowered_by,
    repeats_to_decide,
    severity,
    state_of,
    sure_advantage,
)
from fedspill.audit.why_not import skipped
from fedspill.evidence import Clients, Curve, from_json, merge
from fedspill.metric import Measured, Metric, Score

BINS = 10
WORST = ("errored", "unscored", "read", "skipped")  # of several repeats without a score, the one that is told
NOT_RUN = Outcome(status="unscored", why="not run yet")


def score_finding(
    pair: Pair,
    title: str,
    family: str,
    outcomes: Sequence[Outcome],
    control: ControlOutcome | None,
    more: Sequence[Metric[Any]] = (),
) -> Finding:
    """The mean over federations, each a repeat; without a passed control there is no score.

    `more` are the metrics that the plan names beside the leak's own.
    """
    scored = [outcome for outcome in outcomes if outcome.status == "ok"]
    others = [outcome for outcome in outcomes if outcome.status != "ok"]
    finding = Finding(
        id=pair.id,
        attack=pair.attack,
        title=title,
        adversary=pair.adversary,
        family=family,
        options=pair.options,
        errors=sum(outcome.status in ("errored", "unscored") for outcome in others),
    )
    if not scored:
        worst = min(others, key=lambda outcome: WORST.index(outcome.status), default=NOT_RUN)
        if worst.status == "read":
            return _read(finding, worst, control)
        tested = "not tested" if worst.status == "skipped" else "errored"
        return finding.model_copy(
            update={"status": worst.status, "why": worst.why, "state": tested, "why_short": skipped(worst.why)}
        )
    leak, does = pair.leak, pair.facts.needed().does
    metrics = metrics_of(leak, more)
    scores = {name: _pooled(metrics[name], scored) for name in scored[0].measured if name in metrics}
    headline = leak.headline
    score = scores.pop(headline.name)
    notes = list(dict.fromkeys(note for outcome in scored for note in outcome.notes))
    notes += _on_own_model(control)
    if others:
        notes.append(f"{len(others)} of {len(outcomes)} repeats gave nothing: {others[0].why}")
    used = sorted({word for outcome in scored for word in outcome.used})
    figures = ScoreFigures.of(headline, score)
    finding = finding.model_copy(update={"score": figures.unnumbered, "notes": notes, "used": used})
    failed = _failure(control)
    if score.status != "ok" or failed:
        why = failed or score.why
        return finding.model_copy(
            update={"status": "unscored", "why": why, "state": "errored", "why_short": skipped(why)}
        )
    state = state_of(score, headline.perfect)
    decide = repeats_to_decide(score, headline.perfect, len(scored)) if state == "undecided" else None
    return finding.model_copy(
        update={
            "status": "ok",
            "score": figures,
            "state": state,
            "repeats_to_decide": decide,
            "severity": severity(score, headline.perfect, used, does),
            "lowered": lowered_by(used, does) if state == "found" else "",
            "advantage": advantage(score, headline.perfect) if state == "found" else 0.0,
            "sure": sure_advantage(score, headline.perfect) if state == "found" else 0.0,
            "likely": levels_of(score, headline.perfect).level if state == "undecided" else None,
            "borderline": levels_of(score, headline.perfect).borderline,
            "other_scores": [
                ScoreFigures.of(metrics[name], other) for name, other in scores.items() if other.status == "ok"
            ],
            "evidence": _evidence(headline, scored),
        }
    )


def _read(finding: Finding, outcome: Outcome, control: ControlOutcome | None) -> Finding:
    """What was read and cannot be scored; an attack whose controls fail is not believed here either."""
    if failed := _failure(control):
        return finding.model_copy(
            update={"status": "unscored", "why": failed, "state": "errored", "why_short": skipped(failed)}
        )
    return finding.model_copy(
        update={
            "status": "read",
            "state": "read",
            "why": outcome.why,
            "why_short": "read; nothing is known to hold it against",
            "reading": outcome.reading,
            "notes": [*outcome.notes, *_on_own_model(control)],
            "used": sorted(outcome.used),
        }
    )


def _on_own_model(control: ControlOutcome | None) -> list[str]:
    """What a reader must know of an attack that found nothing where it should have, on the user's own model."""
    part = control.own_model if control is not None else None
    if part is None or part.passed or part.why.startswith(("not scored", "could not run")):
        return []
    return [
        f"In a small federation of your own model and data, made as for its self-check, it {part.why}: "
        "a low score can mean that nothing leaks, or that it does not work on this model."
    ]


def _failure(control: ControlOutcome | None) -> str:
    return control.failure() if control is not None else "its controls did not run"


def _pooled(metric: Metric[Any], outcomes: Sequence[Outcome]) -> Score:
    score = metric.summarise(Measured.join([outcome.measured[metric.name].measured() for outcome in outcomes]))
    if score.status == "ok" and (rounded(score.low) is None or rounded(score.high) is None):
        return Score.unscored(f"{score.n} measurement is too few for an interval", score.n)
    return score


def _evidence(metric: Metric[Any], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How the score spreads over origins, and what the metric has to show."""
    values = [value for outcome in outcomes for value in outcome.measured[metric.name].values]
    drawings = merge([[from_json(item) for item in outcome.evidence] for outcome in outcomes])
    return [
        histogram(f"{metric.title}, over origins", values),
        *by_round(metric, outcomes),
        *by_client(metric, outcomes),
        *(_rounded(item.as_json()) for item in drawings),
    ]


def _rounded(drawing: dict[str, Any]) -> dict[str, Any]:
    lists = {key: value for key, value in drawing.items() if isinstance(value, list)}
    return drawing | {key: [rounded(x) if isinstance(x, float) else x for x in value] for key, value in lists.items()}


def by_round(metric: Metric[Any], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The mean score of each round beside chance: leaks come and go as the model is trained."""
    values, chance = defaultdict(list), defaultdict(list)
    for outcome in outcomes:
        measured = outcome.measured[metric.name]
        if len(outcome.rounds) != len(measured.values):
            return []
        for number, value, level in zip(outcome.rounds, measured.values, measured.chance, strict=True):
            values[number].append(value)
            chance[number].append(level)
    if len(values) < 2:
        return []
    rounds = sorted(values)
    means = [[rounded(fmean(of[number])) or 0.0 for number in rounds] for of in (values, chance)]
    title = f"{metric.title}, by round"
    return [Curve(title, False, [float(r) for r in rounds], means[0], "round", metric.title, means[1]).as_json()]


def by_client(metric: Metric[Any], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The mean score of each client beside chance; of several repeats the first, since each has clients of its own."""
    outcome = outcomes[0]
    measured = outcome.measured[metric.name]
    if len(outcome.senders) != len(measured.values):
        return []
    values, chance = defaultdict(list), defaultdict(list)
    for sender, value, level in zip(outcome.senders, measured.values, measured.chance, strict=True):
        values[sender].append(value)
        chance[sender].append(level)
    if len(values) < 2:
        return []
    names = sorted(values, key=lambda name: (len(name), name))
    means = [[rounded(fmean(of[name])) or 0.0 for name in names] for of in (values, chance)]
    which = ", first repeat" if len(outcomes) > 1 else ""
    title = f"{metric.title}, by client{which}"
    return [Clients(title, False, names, means[0], means[1]).as_json()]


def histogram(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Counts in equal steps, over 0 to 1 where all values lie there."""
    inside = min(values) >= 0 and max(values) <= 1
    low, high = (0.0, 1.0) if inside else (min(values), max(values))
    high = high if high > low else low + 1
    counts = torch.histc(torch.tensor(values, dtype=torch.float64), BINS, low, high).long().tolist()
    edges = [rounded(low + (high - low) * step / BINS) for step in range(BINS + 1)]
    return {"kind": "histogram", "title": title, "private": False, "edges": edges, "counts": counts}
