"""Areas under restricted ROC curves, their intervals and drawings: how yes-or-no scores are held against the truth."""

from __future__ import annotations

import math

import torch
from sklearn.metrics import roc_curve
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Curve, Evidence
from fedspill.guess import Guess
from fedspill.intervals import CONFIDENCE, binomial_interval
from fedspill.metric import Measured, Score
from fedspill.seeds import generator
from fedspill.trace import Truth

MAX_FPR = 0.25  # what paper 004 restricts its curves to
_DRAWS = 1000


def target_facts(guess: Guess, places: Tensor, truth: Truth, name: str) -> Tensor:
    """(targets,) that fact of every target."""
    if any(not truth.has(origin, name) for origin in guess.of):
        raise NotScored(f"the recording does not say {name.replace('_', ' ')}")
    pairs = zip(guess.of, places.tolist(), strict=True)
    return torch.stack([truth.get(origin, name)[place] for origin, place in pairs])


def area_score(measured: Measured, max_fpr: float) -> Score:
    assert measured.trials is not None
    true, n = measured.trials > 0, len(measured.values)
    if not bool(true.any()) or bool(true.all()):
        return Score.unscored("all targets are alike: nothing to tell apart", n)
    value = restricted_area(true, measured.values, max_fpr)
    low, high = area_interval(true, measured.values, max_fpr)
    return Score(value, low, high, n, max(0.5, restricted_area(true, measured.chance, max_fpr)))


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
    """The exact binomial interval at the number of targets that the area's spread is worth.

    The spread comes from drawing the targets anew within each class. It is none when all are told apart, so that the
    number is at most that of the rarer class: eight of eight right are no certainty.
    """
    rng = generator(0, "restricted area")
    classes = [(true == side).nonzero().flatten() for side in (True, False)]
    fewest = min(len(members) for members in classes)
    drawn = []
    for _ in range(_DRAWS):
        again = [members[torch.randint(len(members), (len(members),), generator=rng)] for members in classes]
        picked = torch.cat(again)
        drawn.append(restricted_area(true[picked], scores[picked], max_fpr))
    value, spread = restricted_area(true, scores, max_fpr), float(torch.tensor(drawn).var())
    share = min(max(value, 0.0), 1.0)
    effective = min(share * (1 - share) / spread if spread > 0 else math.inf, float(fewest))
    low, high = binomial_interval(share * effective, effective, confidence)
    return min(low, value), max(high, value)


def roc_evidence(title: str, true: Tensor, scores: Tensor) -> Evidence:
    if not bool((true > 0).any()) or bool((true > 0).all()):
        return Curve(title, False, [0.0, 1.0], [0.0, 1.0], "false positives", "true positives", [0.0, 1.0])
    fpr, tpr = roc(true > 0, scores)
    steps = [float(step) for step in torch.linspace(0, 1, 21)]  # of all targets together: no single one shows
    heights = [float(tpr[(fpr <= step).nonzero().max()]) for step in steps]
    return Curve(title, False, steps, heights, "false positives", "true positives", steps)
