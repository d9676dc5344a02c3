"""Areas under restricted ROC curves, their intervals and drawings: how yes-or-no scores are held against the truth."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import final

import torch
from sklearn.metrics import roc_curve
from torch import Tensor

from fedspill.curve_intervals import Ranking, measure_area, own_clusters
from fedspill.errors import NoTruth
from fedspill.evidence import Curve, Evidence
from fedspill.guess import Guess
from fedspill.intervals import CONFIDENCE, OverFederations, Scale
from fedspill.metric import G, Measured, Metric
from fedspill.trace import Truth

MAX_FPR = 0.25  # what paper 004 restricts its curves to


def target_facts(guess: Guess, places: Tensor, truth: Truth, name: str) -> Tensor:
    """(targets,) that fact of every target."""
    if any(not truth.has(origin, name) for origin in guess.of):
        raise NoTruth(f"the recording does not say {name.replace('_', ' ')}")
    pairs = zip(guess.of, places.tolist(), strict=True)
    return torch.stack([truth.get(origin, name)[place] for origin, place in pairs])


class AreaMetric(Metric[G], ABC):
    """A restricted ROC area: values are scores, trials whether a target is positive, chance what imputation says."""

    max_fpr: float

    @final
    def tells(self, part: Measured) -> bool:
        assert part.trials is not None
        return bool((part.trials > 0).any()) and bool((part.trials <= 0).any())

    @final
    def over_federations(self, parts: Sequence[Measured], scale: Scale | None) -> OverFederations:
        return measure_area([_ranking(part) for part in parts], self.max_fpr, within=parts[0].within)

    @final
    def chance_of(self, part: Measured) -> float:
        assert part.trials is not None
        return max(0.5, restricted_area(part.trials > 0, part.chance, self.max_fpr))


def _ranking(part: Measured) -> Ranking:
    assert part.trials is not None
    return Ranking(part.trials > 0, part.values, part.own_clusters)


def holders_of(guess: Guess, places: Tensor, truth: Truth) -> Tensor:
    """(targets,) the client that holds each target; a record that nobody holds stands alone.

    Recordings before this fact was kept do not say: then each target counts by itself.
    """
    if all(truth.has(origin, "target_holders") for origin in guess.of):
        return own_clusters(target_facts(guess, places, truth, "target_holders"))
    return torch.arange(len(places))


def restricted_area(true: Tensor, scores: Tensor, max_fpr: float = MAX_FPR) -> float:
    """Area under the ROC curve up to `max_fpr`, on McClish's scale: 0.5 is guessing, 1 is perfect. Ties count half."""
    fpr, tpr = roc(true, scores)
    inside = int((fpr <= max_fpr).sum())
    if inside < len(fpr):  # the curve is cut where it crosses the limit
        share = (max_fpr - fpr[inside - 1]) / (fpr[inside] - fpr[inside - 1])
        cut = tpr[inside - 1] + share * (tpr[inside] - tpr[inside - 1])
        fpr = torch.cat([fpr[:inside], torch.tensor([max_fpr], dtype=fpr.dtype)])
        tpr = torch.cat([tpr[:inside], cut[None]])
    area, least, most = float(torch.trapezoid(tpr, fpr)), max_fpr**2 / 2, max_fpr
    return 0.5 * (1 + (area - least) / (most - least)) if max_fpr < 1 else area


def roc(true: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates of all thresholds, from the highest score down; equal scores are one step."""
    fpr, tpr, _ = roc_curve(true.numpy(), scores.numpy(), drop_intermediate=False)
    return torch.from_numpy(fpr), torch.from_numpy(tpr)


def area_interval(true: Tensor, scores: Tensor, max_fpr: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of one area whose targets each stand alone, as in the tables of paper 004."""
    ranking = Ranking(true > 0, scores, torch.arange(len(true)))
    found = measure_area([ranking], max_fpr, confidence=confidence).interval()
    return found.low, found.high


def roc_evidence(title: str, true: Tensor, scores: Tensor) -> Evidence:
    if not bool((true > 0).any()) or bool((true > 0).all()):
        return Curve(title, False, [0.0, 1.0], [0.0, 1.0], "false positives", "true positives", [0.0, 1.0])
    fpr, tpr = roc(true > 0, scores)
    steps = [float(step) for step in torch.linspace(0, 1, 21)]  # of all targets together: no single one shows
    heights = [float(tpr[(fpr <= step).nonzero().max()]) for step in steps]
    return Curve(title, False, steps, heights, "false positives", "true positives", steps)
