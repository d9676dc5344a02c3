"""Labels of single samples: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import ATTRIBUTE_IDS, Leak, of_hundred
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.metrics import SampleLabelAccuracy, SampleLabelAuc

SAMPLE_LABELS = Leak(
    name="sample_labels",
    title="The label of each sample",
    question="What is the label of this sample, which another party keeps to itself?",
    guess=SampleLabels,
    metrics=(SampleLabelAccuracy(), SampleLabelAuc()),
    control={
        "data": {"name": "made-up-people", "people": 1000},
        "model": {"name": "vertical-mlp", "widths": [16, 8]},
        "federation": {"kind": "vertical", "towers": "private", "samples": 400, "rounds": 80, "batches": "epochs"},
        "training": {"batch_size": 20, "optimizer": "adam", "lr": 0.01},
        "adversary_data": {"per_class": 0, "known_labels": 4},
    },
    figure=of_hundred("labels"),
    sentence="{figure} of single samples are read correctly",
    claim="read {much} of the labels that another party keeps to itself, sample by sample",
    taxonomy=ATTRIBUTE_IDS,
    federations=("private towers",),
    held_by=("active-party",),
)
