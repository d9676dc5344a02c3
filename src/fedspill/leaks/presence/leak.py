"""Classes that took part in a round: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import PROPERTY_IDS, Leak, of_hundred
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.presence.metrics import BalancedPresence, PresenceSuccess
from fedspill.leaks.presence.reading import read_presence

PRESENCE = Leak(
    name="presence",
    title="Classes that took part in a round",
    question="Does any other client of a round hold samples of a class?",
    guess=Presence,
    metrics=(BalancedPresence(), PresenceSuccess()),
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "main-labels", "low": 2, "high": 3, "per_label": 20, "minor": 0, "reuse": True},
        "federation": {"clients": 20, "rounds": 12, "clients_per_round": 3, "weighting": "uniform"},
        "training": {"lr": 0.02, "batch_size": 10},
        "adversary_data": {"per_class": 20},
    },
    figure=of_hundred("classes"),
    sentence="{figure} are rightly told to be in a round or not",
    claim="tell {often} which classes took part in a round",
    implied_by=("labels",),
    taxonomy=PROPERTY_IDS,
    reader=read_presence,
)
