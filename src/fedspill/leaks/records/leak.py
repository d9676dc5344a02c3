"""Records of a table: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import RECONSTRUCTION_IDS, Leak, of_hundred
from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.metrics import CertifiedRecords, RecordFields, RecordsWhole
from fedspill.leaks.records.reading import read_records

RECORDS = Leak(
    name="records",
    title="Records of a table",
    question="What stands in the fields of the records that a client trained on?",
    guess=Records,
    metrics=(RecordFields(), RecordsWhole(), CertifiedRecords()),
    # One client a round with one small batch of a fresh network: the gradient holds every record of it.
    control={
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [32, 32]},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 6, "rounds": 6, "clients_per_round": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 4},
        "adversary_data": {"per_class": 50},
    },
    figure=of_hundred("fields"),
    sentence="{figure} of the records that a client trained on are read",
    claim="read {much} of the fields of the records that a client trained on",
    taxonomy=RECONSTRUCTION_IDS,
    reader=read_records,
)
