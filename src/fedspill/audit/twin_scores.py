"""From the scores on twins to what they say of the recording: where the score of one more federation would lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from fedspill.attack_run import Outcome
from fedspill.audit.likeness import likeness_checks
from fedspill.audit.outcomes import TwinsOutcome
from fedspill.audit.result import Finding, LikenessCheck, TwinFigures, TwinSummary
from fedspill.audit.severity import Severity, severity
from fedspill.intervals import CONFIDENCE
from fedspill.leak import Leak
from fedspill.metric import Measured, Metric, Score

LEAST = 2  # twins that an interval takes


def twin_figures(
    leak: Leak[Any], outcomes: Sequence[Outcome], used: Sequence[str], *, like: bool
) -> TwinFigures | None:
    """The mean over twins, and Student's interval for the value of one more: the recording itself.

    That interval is wider than the one of the mean, as it must be: a recording is one federation.
    """
    metric = leak.headline
    scored = [outcome for outcome in outcomes if outcome.status == "ok"]
    if len(scored) < LEAST:
        return None
    pooled = metric.summarise(Measured.join([outcome.measured[metric.name].measured() for outcome in scored]))
    values = pooled.federations
    if pooled.status != "ok" or len(values) < LEAST:
        return None
    low, high = one_more(values, metric)
    score = Score(fmean(values), low, high, pooled.n, pooled.chance)
    words = leak.words(score)
    return TwinFigures(
        value=score.value,
        low=low,
        high=high,
        chance=score.chance,
        twins=len(values),
        figure=words.figure,
        guessing=words.by_guessing,
        severity=severity(score, metric.perfect, used) if like else None,
    )


def one_more(values: Sequence[float], metric: Metric[Any]) -> tuple[float, float]:
    """Where the next value lies in 95 % of cases, if it is drawn as these were; within what the metric can be."""
    many = len(values)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, many - 1)) * stdev(values) * math.sqrt(1 + 1 / many)
    low, high = fmean(values) - reach, fmean(values) + reach
    if metric.perfect == 1 and all(0 <= value <= 1 for value in values):
        return max(low, 0.0), min(high, 1.0)
    return (max(low, 0.0), high) if metric.perfect == 0 else (low, high)


def twin_summary(outcome: TwinsOutcome, confidence: Sequence[tuple[float, Sequence[float]]]) -> TwinSummary:
    """Whether there are twins, and whether they are like the recording.

    confidence: of each attack, what it expects to have right in the recording and on each twin.
    """
    if outcome.status != "ok":
        return TwinSummary(possible=False, why=outcome.why)
    recorded, twins = dict(outcome.recorded), [dict(twin) for twin in outcome.twins]
    whole = [(mine, others) for mine, others in confidence if len(others) == len(twins)]
    if whole:
        recorded["confidence"] = fmean(mine for mine, _ in whole)
        for number, twin in enumerate(twins):
            twin["confidence"] = fmean(others[number] for _, others in whole)
    checks = likeness_checks(recorded, twins)
    unlike = [check for check in checks if not check.alike]
    return TwinSummary(
        possible=True,
        like=not unlike,
        why=_unlike(unlike) if unlike else "",
        twins=len(twins),
        mix=outcome.mix,
        chained=outcome.chained,
        checks=checks,
    )


def _unlike(checks: Sequence[LikenessCheck]) -> str:
    said = [f"{check.name} is {check.recorded:.2f}, of twins {check.low:.2f} to {check.high:.2f}" for check in checks]
    return f"the twins are unlike the recording: {'; '.join(said)}"


def believed(finding: Finding, summary: TwinSummary | None) -> str:
    """How far a reading can be believed, in a few words."""
    reading, twin = finding.reading, finding.twin
    expects = ""
    if reading is not None and reading.expects is not None:
        expects = f"it expects {round(100 * reading.expects)} of 100 to be right"
    if twin is None or summary is None or not summary.possible:
        return expects or "it does not say how sure it is"
    words = f"{twin.figure} on {twin.twins} twins, guessing {twin.guessing}"
    if not summary.like:
        return f"{expects or words}; the twins are unlike the recording"
    if twin.severity == Severity.INFO:
        words = f"not surely better than guessing: {words}"
    return words + (f"; {expects}" if expects else "")
