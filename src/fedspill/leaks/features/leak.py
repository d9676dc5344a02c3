"""Features of another party: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import RECONSTRUCTION_IDS, Leak, of_hundred
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.metrics import FeatureCells, FeatureRowsExact, FeatureVariance

FEATURES = Leak(
    name="features",
    title="What another party holds of each sample",
    question="What are the features of this sample that another party keeps to itself?",
    guess=FeatureRows,
    metrics=(FeatureCells(), FeatureRowsExact(), FeatureVariance()),
    control={
        "data": {"name": "made-up-people", "people": 1000},
        "model": {"name": "vertical-mlp", "widths": [24]},
        "federation": {
            "kind": "vertical", "towers": "private", "samples": 400, "rounds": 40, "batches": "epochs",
            "predictions": 200, "hand_over": True,
        },
        "training": {"batch_size": 20, "optimizer": "adam", "lr": 0.01},
        "adversary_data": {"per_class": 0, "pairs": 60},
    },
    figure=of_hundred("values"),
    sentence="{figure} that another party holds are read correctly",
    claim="read {much} of the features that another party keeps to itself",
    taxonomy=RECONSTRUCTION_IDS,
    federations=("private towers",),
)  # fmt: skip
