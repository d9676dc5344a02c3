"""Batches too large for the root search are read off an honest network row by row, and what is vouched for is right."""

from __future__ import annotations

from typing import Any

import pytest

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace


def read(activation: str, batch: int) -> Any:
    plan = {
        "data": "digits",
        "model": {"name": "mlp", "widths": [128], "activation": activation},
        "partition": "iid",
        "federation": {"clients": 3, "rounds": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": batch},
        "seed": 5,
    }
    deployment = Deployment.of(check_plan(plan, "test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    truth = trace.truth().beside(deployment.shares.clients)
    attack = make("attacks", "inputs")
    return run_attack(attack, trace, CURIOUS_SERVER, knowledge=deployment.knowledge(), seed=1, truth=truth)


@pytest.mark.parametrize("batch", [16, 40])
def test_rows_of_a_rectified_layer_give_samples_away_and_each_is_right(batch: int) -> None:
    outcome = read("relu", batch)
    assert outcome.scores["inputs-recovered"].value > (0.9 if batch == 16 else 0.0)
    if outcome.guess.certified[0].any():
        assert outcome.scores["certificate-precision"].value == 1.0


def test_a_smooth_layer_is_left_to_other_routes() -> None:
    outcome = read("tanh", 40)
    assert not any(bool(marks.any()) for marks in outcome.guess.certified)
