"""Records of a table that a planting server reads: more than an honest one can, and nothing false is vouched for."""

from __future__ import annotations

from typing import Any

import pytest

from fedspill.attack_run import Outcome, run_attack
from fedspill.audit.planted_run import run_planted
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.leaks.records.planted_records import PlantedRecords
from fedspill.threat import MALICIOUS_SERVER_UPDATES


def outcome(**changes: Any) -> Outcome:
    attack = PlantedRecords()
    assert attack.control is not None
    deployment = Deployment.of(check_plan({"seed": 3, **attack.control, **changes}, "a test"))
    trace, known = run_planted(attack, MALICIOUS_SERVER_UPDATES, deployment)
    truth = trace.truth().beside(deployment.shares.clients)
    return run_attack(attack, trace, MALICIOUS_SERVER_UPDATES, knowledge=known, seed=1, truth=truth)


def test_a_planted_layer_gives_records_away_that_fill_all_columns_of_the_table() -> None:
    training = {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 32}
    found = outcome(training=training, model={"name": "mlp", "widths": [128]})
    assert found.scores["record-fields"].value > 0.95
    assert found.scores["records-whole"].value > 0.8
    assert found.scores["record-fields"].chance < 0.7
    proof = found.scores["record-fields"].proof
    assert proof is not None
    assert proof.proven > 0
    assert proof.refuted == 0


def test_images_are_refused_before_any_round() -> None:
    with pytest.raises(NotApplicable, match="no table"):
        outcome(data="digits")
