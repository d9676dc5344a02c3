"""Balanced accuracy: the interval of two rates together, what is there and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.intervals import (
    CONFIDENCE,
    ROUNDS,
    SHARE,
    OverFederations,
    as_deviation,
    cluster_means,
    combined,
    cut,
    interval_over_clusters,
    within_confidence,
)


@dataclass(frozen=True, eq=False)
class Answers:
    """One federation's yes-or-no answers: right (n,) bool, there (n,) bool what was true, clusters (n,) int64."""

    right: Tensor
    there: Tensor
    clusters: Tensor

    @property
    def both(self) -> bool:
        return bool(self.there.any()) and not bool(self.there.all())

    @property
    def balanced(self) -> float:
        """The mean of the rate on what is there and the rate on what is not."""
        right = self.right.double()
        return float(right[self.there].mean() + right[~self.there].mean()) / 2


def measure_balanced(
    federations: Sequence[Answers], *, within: str = ROUNDS, confidence: float = CONFIDENCE
) -> OverFederations:
    """Balanced accuracy: an interval over clusters for each of the two rates, then put together.

    Federations in which everything or nothing is there have no balanced accuracy and must be left out by the caller.
    """
    if not federations or not all(one.both for one in federations):
        raise ValueError("Expected federations with labels that are there and labels that are not.")
    values = [one.balanced for one in federations]
    value, sure = sum(values) / len(values), within_confidence(len(federations), confidence)
    parts, sides = [], []
    for side in (True, False):
        kept = [one.there == side for one in federations]
        rows = [cluster_means(one.right[keep], one.clusters[keep]) for one, keep in zip(federations, kept, strict=True)]
        means, weights = torch.cat([m for m, _ in rows]), torch.cat([w / w.sum() for _, w in rows])
        interval = interval_over_clusters(means, SHARE, weights=weights, population=within, confidence=sure)
        parts.append(as_deviation(interval, float((means * weights).sum() / weights.sum())))
        sides.append(_by_cluster(federations, kept))
    joint = cut(combined(value, parts, (0.5, 0.5), correlation_of_sides(sides)), 0.0, 1.0)
    return OverFederations(tuple(values), joint, SHARE.ends, confidence)


def _by_cluster(federations: Sequence[Answers], kept: Sequence[Tensor]) -> dict[tuple[int, int], float]:
    """(federation, cluster) -> mean of what is kept of it."""
    found = {}
    for number, (one, keep) in enumerate(zip(federations, kept, strict=True)):
        for cluster in torch.unique(one.clusters[keep]).tolist():
            found[number, cluster] = float(one.right[keep & (one.clusters == cluster)].double().mean())
    return found


def correlation_of_sides(sides: Sequence[dict[tuple[int, int], float]]) -> float:
    """Of the two values of clusters that have both, never below 0: a cluster that is hard may be hard on both sides."""
    shared = sorted(sides[0].keys() & sides[1].keys())
    if len(shared) < 3:
        return 1.0 if shared else 0.0  # too few to tell: the wider interval
    pair = torch.tensor([[side[key] for key in shared] for side in sides], dtype=torch.float64)
    if bool((pair.std(1) == 0).any()):
        return 0.0  # a side that does not vary adds nothing to vary with
    return max(0.0, float(torch.corrcoef(pair)[0, 1]))
