"""Inputs behind sums: found whole, vouched for, and put together by client only where the rounds tell clients apart."""

from typing import Any

import pytest
import torch

from fedspill.attack_run import Outcome, run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.leaks.inputs.exact.gather_by_rounds import gather_by_rounds
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.observed_gradients import RecoveredInputs
from fedspill.leaks.inputs.summed_inputs import SummedInputs
from fedspill.threat import CURIOUS_SERVER, CURIOUS_SERVER_SECAGG, ThreatModel
from fedspill.trace import MemoryTrace


def outcome(
    *, chosen: int, rounds: int, hidden: bool = True, threat: ThreatModel = CURIOUS_SERVER_SECAGG, **training: Any
) -> Outcome:
    """What is read in a federation of six clients with three digits each, of which some are chosen a round."""
    plan = {
        "seed": 5,
        "data": "digits",
        "model": {"name": "mlp", "widths": [40, 40], "activation": "tanh"},
        "partition": {"name": "uniform-batch", "batch": 3},
        "federation": {
            "clients": 6, "clients_per_round": chosen, "rounds": rounds, "secure_aggregation": hidden,
        },
        "training": {"lr": 0.05, "batch_size": 3, **training},
    }  # fmt: skip
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    truth, known = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
    return run_attack(SummedInputs(), trace, threat, knowledge=known, seed=1, truth=truth)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_samples_of_several_clients_come_out_of_sums_and_are_put_together(algorithm: str) -> None:
    found = outcome(chosen=2, rounds=10, algorithm=algorithm)
    assert float(found.measured["inputs-recovered"].measured().values.mean()) > 0.95
    assert found.measured["certificate-precision"].values == pytest.approx([1.0] * 10)
    pairs = found.measured["inputs-grouped"].measured()
    assert float(pairs.values.min()) == 1.0
    assert float(pairs.chance.max()) < 0.5
    assert isinstance(found.guess, Inputs)
    assert found.guess.groups is not None
    assert float((torch.cat(list(found.guess.groups)) >= 0).double().mean()) > 0.5


def test_where_all_clients_take_part_in_every_round_none_are_told_apart() -> None:
    found = outcome(chosen=6, rounds=2)
    assert isinstance(found.guess, Inputs)
    assert found.guess.groups is not None
    assert int(torch.cat(list(found.guess.groups)).max()) == -1
    assert any("do not tell them apart" in note for note in found.guess.notes)
    assert "inputs-grouped" not in found.measured


def test_sums_of_several_steps_and_messages_that_are_seen_one_by_one_are_left_alone() -> None:
    several = outcome(chosen=2, rounds=1, epochs=2)
    assert several.status == "skipped"
    assert "clients that make several steps each" in several.why
    seen = outcome(chosen=2, rounds=1, hidden=False, threat=CURIOUS_SERVER)
    assert seen.status == "skipped"
    assert "single messages are seen" in seen.why


def test_without_a_sample_that_is_vouched_for_nothing_is_gathered() -> None:
    none = RecoveredInputs.none("nothing", tried=True)
    assert len(gather_by_rounds([], [none], torch.Generator()).samples) == 0
