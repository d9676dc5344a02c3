"""Clients that own a class: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import PROPERTY_IDS, Leak, of_hundred
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.metrics import QuantityError, WithinFivePercent, WithinOne
from fedspill.leaks.quantity.reading import read_quantities

QUANTITY = Leak(
    name="quantity",
    title="Clients that own a class",
    question="How many other clients of a round own each class?",
    guess=ClassQuantities,
    metrics=(WithinOne(), QuantityError(), WithinFivePercent()),
    # Ten clients a round: of three, any guess would be within one.
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "main-labels", "low": 2, "high": 3, "per_label": 20, "minor": 0, "reuse": True},
        "federation": {"clients": 30, "rounds": 20, "clients_per_round": 10, "weighting": "uniform"},
        "training": {"lr": 0.02, "batch_size": 10},
        "adversary_data": {"per_class": 20},
    },
    figure=of_hundred("classes"),
    sentence="the number of clients that own a class is right within one for {figure}",
    claim="tell {often} how many clients own a class",
    implied_by=("labels",),
    taxonomy=PROPERTY_IDS,
    reader=read_quantities,
)
