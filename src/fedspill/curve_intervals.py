"""Intervals of ROC curves: areas, whole or restricted, and the rate at a fixed rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy import special
from torch import Tensor

from fedspill.intervals import (
    CLIENTS,
    CONFIDENCE,
    SHARE,
    Interval,
    OverFederations,
    Scale,
    as_deviation,
    cluster_means,
    combined,
    cut,
    interval_over_clusters,
    normal_factor,
    within_confidence,
)
from fedspill.rate_intervals import correlation_of_sides


@dataclass(frozen=True, eq=False)
class Ranking:
    """One federation's targets: positive (n,) bool, scores (n,) the higher the surer, clusters (n,) int64.

    A target's cluster is the client that holds it. A record that nobody holds is a cluster of its own: give each
    another number (`own_clusters` does).
    """

    positive: Tensor
    scores: Tensor
    clusters: Tensor

    def __post_init__(self) -> None:
        if not self.positive.shape == self.scores.shape == self.clusters.shape or self.positive.ndim != 1:
            raise ValueError("Expected positive, scores and clusters of one shape (n,).")
        if not bool(self.positive.any()) or bool(self.positive.all()):
            raise ValueError("Expected targets of both kinds: there is nothing to tell apart.")
        if not bool(torch.isfinite(self.scores).all()):
            raise ValueError("Expected finite scores.")


def own_clusters(holders: Tensor) -> Tensor:
    """(n,) the holders, and for each record without one (negative) a number that no other has."""
    fresh = int(holders.max()) + 1 + torch.arange(len(holders)) if len(holders) else holders
    return torch.where(holders < 0, fresh.clamp(min=0), holders)


def roc_area(ranking: Ranking, max_fpr: float = 1.0) -> float:
    """Area under the ROC curve up to `max_fpr`; below 1 on McClish's scale: 0.5 is guessing, 1 is perfect."""
    return float(_placements(ranking, max_fpr).of_positives.mean())


@dataclass(frozen=True, eq=False)
class _Placements:
    """The area as a mean over positives, and as one over negatives: (positives,) and (negatives,), both mean the area.

    `ends` are the least and the greatest that one negative could be, `alike` what one is that looks like a positive.
    """

    of_positives: Tensor
    of_negatives: Tensor
    ends: tuple[float, float]
    alike: float


def _placements(ranking: Ranking, max_fpr: float) -> _Placements:
    """How much each target adds to the area: the first-order influence of each, as DeLong's for the whole curve.

    A positive adds the part of [0, max_fpr] to the right of it. A negative adds what the area would be if all
    negatives were like it, to first order; the limit itself adds nothing, since the integrand vanishes there.
    """
    own, other = ranking.scores[ranking.positive].double(), ranking.scores[~ranking.positive].double()
    above = (other[None, :] > own[:, None]).double()  # (positives, negatives)
    tied = (other[None, :] == own[:, None]).double()
    start, width = above.mean(1), tied.mean(1)
    # Ties: the curve runs straight across them, so that the mean over the tied stretch counts.
    raw = torch.where(
        width > 0,
        (_ramp(start, max_fpr) - _ramp(start + width, max_fpr)) / width.clamp(min=1e-300),
        (max_fpr - start).clamp(min=0),
    )
    inside = (start + width / 2 < max_fpr).double()
    ahead = above + tied / 2
    change = -(inside[:, None] * (ahead - ahead.mean(1, keepdim=True))).mean(0)
    factor = 0.5 / (max_fpr - max_fpr**2 / 2) if max_fpr < 1 else 1.0
    shift = 0.5 - factor * max_fpr**2 / 2 if max_fpr < 1 else 0.0
    positives = shift + factor * raw
    area = float(positives.mean())
    at = ahead.mean(1)
    least, most = (area - factor * float((inside * (hit - at)).mean()) for hit in (1.0, 0.0))
    alike = area - factor * float((inside * (0.5 - at)).mean())
    return _Placements(positives, area + factor * change, (least, most), alike)


def _ramp(start: Tensor, limit: float) -> Tensor:
    return (limit - start).clamp(min=0) ** 2 / 2


def measure_area(
    federations: Sequence[Ranking], max_fpr: float = 1.0, *, within: str = CLIENTS, confidence: float = CONFIDENCE
) -> OverFederations:
    """The (restricted) area under the ROC curve of each federation.

    The positives' part and the negatives' part are intervals over their own clusters. Where clients hold both kinds,
    as with an attribute of members, the two parts vary together, and that is counted.
    """
    values = [roc_area(one, max_fpr) for one in federations]
    value, placed = sum(values) / len(values), [_placements(one, max_fpr) for one in federations]
    sure = within_confidence(len(federations), confidence)
    sides = [_placed_by_cluster(federations, placed, positive=kind) for kind in (True, False)]
    # A positive that fails looks like a negative, a negative that fails like a positive. Of a client with both kinds
    # only one of the two can be so, or each by half.
    share = 0.5 if sides[0].keys() & sides[1].keys() else 1.0
    floor = 0.5 - 0.5 * (max_fpr / 2) / (1 - max_fpr / 2) if max_fpr < 1 else 0.0  # the scaled area of an empty curve
    scale = Scale(floor, 1.0, failed=1 - share * 0.5)
    parts = []
    for side, span in zip(sides, (scale, _span_of_negatives(placed, share)), strict=True):
        if span is not None:
            means, weights = torch.tensor(list(side.values()), dtype=torch.float64).T
            interval = interval_over_clusters(means, span, weights=weights, population=within, confidence=sure)
            parts.append(as_deviation(interval, float((means * weights).sum() / weights.sum())))
    correlation = correlation_of_sides([{key: mean for key, (mean, _) in side.items()} for side in sides])
    joint = cut(combined(value, parts, [1.0] * len(parts), correlation), floor, 1.0)
    return OverFederations(tuple(values), joint, (floor, 1.0), confidence)


def _placed_by_cluster(
    federations: Sequence[Ranking], placed: Sequence[_Placements], *, positive: bool
) -> dict[tuple[int, int], tuple[float, float]]:
    """(federation, cluster) -> the mean placement of its targets of one kind, and its weight in the federation."""
    found = {}
    for number, (one, place) in enumerate(zip(federations, placed, strict=True)):
        clusters = one.clusters[one.positive == positive]
        means, counts = cluster_means(place.of_positives if positive else place.of_negatives, clusters)
        for cluster, mean, count in zip(torch.unique(clusters).tolist(), means.tolist(), counts.tolist(), strict=True):
            found[number, cluster] = (mean, count / len(clusters))
    return found


def _span_of_negatives(placed: Sequence[_Placements], share: float) -> Scale | None:
    """Between what the area would be with all negatives on top and with all at the bottom; none if that is the same."""
    least, most = min(p.ends[0] for p in placed), max(p.ends[1] for p in placed)
    if most <= least:
        return None
    alike = sum((1 - share) * p.ends[1] + share * p.alike for p in placed) / len(placed)
    return Scale(least, most, failed=min(max(alike, least), most))


def tpr_at_fpr(ranking: Ranking, fpr: float) -> float:
    """Share of positives above the threshold that lets at most `fpr` of the negatives through."""
    return _rate_above(ranking, int(fpr * int((~ranking.positive).sum()) + 1e-9))


def _rate_above(ranking: Ranking, passed: int) -> float:
    """Share of positives that score more than the negative with `passed` negatives before it; none passes: all do."""
    return float(_above(ranking, passed).mean())


def _above(ranking: Ranking, passed: int) -> Tensor:
    """(positives,) 1 where the score is above that threshold."""
    own, other = ranking.scores[ranking.positive].double(), ranking.scores[~ranking.positive].double()
    if passed < 0:
        return torch.zeros_like(own)
    if passed >= len(other):
        return torch.ones_like(own)
    return (own > other.sort(descending=True).values[passed]).double()


def measure_tpr(
    federations: Sequence[Ranking], fpr: float, *, within: str = CLIENTS, confidence: float = CONFIDENCE
) -> OverFederations:
    """The rate of true positives at `fpr` false ones, of each federation.

    Two things are uncertain: the share of positives above a threshold, over clients, and the threshold, which is an
    order statistic of the negatives. Fewer than about 3 / fpr negatives hardly fix the threshold, and the lower end is
    then low whatever the positives do.
    """
    values = [tpr_at_fpr(one, fpr) for one in federations]
    value, sure = sum(values) / len(values), within_confidence(len(federations), confidence)
    rows = []
    for one in federations:
        passed = int(fpr * int((~one.positive).sum()) + 1e-9)
        means, weights = cluster_means(_above(one, passed), one.clusters[one.positive])
        rows.append((means, weights / weights.sum()))
    shares = interval_over_clusters(
        torch.cat([m for m, _ in rows]),
        Scale(0.0, 1.0, failed=fpr),
        weights=torch.cat([w for _, w in rows]),
        population=within,
        confidence=sure,
    )
    # Negatives of several federations fix their thresholds apart: their errors average out as the root of the number.
    offs = [_threshold_offs(one, fpr) for one in federations]
    below, above = (math.sqrt(sum(side**2 for side in sides)) / len(offs) for sides in zip(*offs, strict=True))
    quantile = normal_factor(sure)
    threshold = Interval(-quantile * below, quantile * above, within, shares.clusters)
    joint = cut(combined(value, [as_deviation(shares, value), threshold], (1.0, 1.0)), 0.0, 1.0)
    return OverFederations(tuple(values), joint, SHARE.ends, confidence)


def _threshold_offs(ranking: Ranking, fpr: float) -> tuple[float, float]:
    """How far off the rate is, below and above, since the threshold is read off these negatives: two half-deviations.

    Of n negatives, a binomial number passes the threshold that lets `fpr` of all negatives through. For each such
    number the threshold lies between two neighbours in the order, and the rate in the middle of its values there. Each
    side counts twice, so that a symmetric spread is the usual standard deviation.
    """
    n, at = int((~ranking.positive).sum()), tpr_at_fpr(ranking, fpr)
    rates = [_rate_above(ranking, passed) for passed in range(-1, n + 1)]
    chances = np.diff(special.bdtr(np.arange(n + 1), n, fpr), prepend=0.0)
    offs = [(low + high) / 2 - at for low, high in pairwise(rates)]
    below = sum(chance * off**2 for chance, off in zip(chances, offs, strict=True) if off < 0)
    above = sum(chance * off**2 for chance, off in zip(chances, offs, strict=True) if off > 0)
    return math.sqrt(2 * below), math.sqrt(2 * above)
