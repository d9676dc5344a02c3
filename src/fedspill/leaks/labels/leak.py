"""Labels in a round: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import PROPERTY_IDS, Leak, of_hundred
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.metrics import LabelCountError, LabelSuccess
from fedspill.leaks.labels.reading import read_counts

LABELS = Leak(
    name="labels",
    title="Labels in a round",
    question="Which classes did a client train on in a round, and how many samples of each?",
    guess=LabelCounts,
    metrics=(LabelSuccess(), LabelCountError()),
    # One client a round, so that the sum leaks as well as the update; two plain steps of a fresh model.
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "half-quarter-rest", "batch": 16},
        "federation": {"clients": 12, "rounds": 12, "clients_per_round": 1},
        "training": {"lr": 0.01, "batch_size": 8},
    },
    figure=of_hundred("labels"),
    sentence="{figure} of a client's round are read correctly",
    claim="read {much} of the labels that a client trained on in a round",
    taxonomy=PROPERTY_IDS,
    reader=read_counts,
)
