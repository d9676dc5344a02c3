"""Common and rare classes of the federation: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import PROPERTY_IDS, Leak
from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.groups.metrics import ExactGroups, LargestGroup, RankCorrelation
from fedspill.leaks.groups.reading import read_groups


def _correlation(value: float) -> str:
    return f"correlation {value:.2f}"


GROUPS = Leak(
    name="groups",
    title="Common and rare classes of the federation",
    question="Which classes does the whole federation have much of, and which little?",
    guess=Groups,
    metrics=(RankCorrelation(), ExactGroups(), LargestGroup()),
    # Few clients with half of the labels each, so that the federation has much of some labels and none of others.
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "main-labels", "low": 5, "high": 5, "per_label": 20, "minor": 0, "reuse": True},
        "federation": {"clients": 4, "rounds": 8, "weighting": "uniform"},
        "training": {"lr": 0.1, "batch_size": 16},
        "adversary_data": {"per_class": 20},
    },
    figure=_correlation,
    sentence="the order of classes from common to rare is told with a rank {figure} (1 is right, 0 is guessing)",
    claim="tell {often} which classes the federation has much of and which little",
    implied_by=("labels", "composition"),
    taxonomy=PROPERTY_IDS,
    reader=read_groups,
)
