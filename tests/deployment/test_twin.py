"""Twins: the recorded federation with other data, and a test that tells wrong facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_kit import record_without_truth

from fedspill.audit.likeness import compared, likeness_checks
from fedspill.audit.result import LikenessCheck
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.deployment.quantities import quantities_of
from fedspill.deployment.recorded_federation import recorded_federation, server_move
from fedspill.deployment.twin import Twin
from fedspill.errors import NoTwin
from fedspill.messages import AGGREGATOR, SERVER, Message
from fedspill.trace import MemoryTrace, Origin
from fedspill.trace_folder import FolderTrace
from fedspill.training import LocalTraining

PLAN: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "widths": [24]},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "federation": {"clients": 8, "rounds": 3},
    "training": {"lr": 0.1, "batch_size": 16},
    "seed": 3,
}


def plan_with(**changes: Any) -> Plan:
    return check_plan({**PLAN, **changes}, "a twin's plan")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> FolderTrace:
    folder = tmp_path_factory.mktemp("recorded") / "trace"
    record_without_truth(plan_with(), folder)
    return FolderTrace(folder)


def twins_of(trace: FolderTrace, plan: Plan, number: int = 4) -> list[MemoryTrace]:
    twin = Twin.of(trace, plan)
    heard = []
    for seed in range(number):
        heard.append(MemoryTrace(trace.protocol))
        twin.run(heard[-1], seed)
    return heard


def unlike(trace: FolderTrace, twins: list[MemoryTrace]) -> list[LikenessCheck]:
    mine, others = compared(quantities_of(trace), [quantities_of(twin) for twin in twins])
    return [check for check in likeness_checks(mine, others) if not check.alike]


def test_a_twin_has_the_recorded_model_rounds_clients_and_samples(recording: FolderTrace) -> None:
    (twin,) = twins_of(recording, plan_with(seed=11), 1)
    first = next(iter(recording.messages("model"))).tensors
    for name, tensor in next(iter(twin.messages("model"))).tensors.items():
        assert torch.equal(tensor, first[name])
    for kind in ("model", "update", "aggregate"):
        assert [m.round for m in twin.messages(kind)] == [m.round for m in recording.messages(kind)]  # type: ignore[arg-type]
    mine, own = ([m.info["examples"] for m in trace.messages("update")] for trace in (recording, twin))
    assert sorted(mine) == sorted(own)
    assert twin.truth().has(Origin(0, "client:0"), "label_counts")


def test_twins_of_the_true_facts_are_like_the_recording(recording: FolderTrace) -> None:
    assert not unlike(recording, twins_of(recording, plan_with(seed=12)))


def test_twins_of_a_wrong_learning_rate_are_unlike(tmp_path: Path) -> None:
    record_without_truth(plan_with(), tmp_path / "trace", local_lr=0.3)
    trace = FolderTrace(tmp_path / "trace")
    assert "update size" in {check.name for check in unlike(trace, twins_of(trace, plan_with(seed=12)))}


def test_twins_of_other_data_are_unlike(recording: FolderTrace) -> None:
    twin = Twin.of(recording, plan_with(seed=12))
    train = twin.dataset.train
    object.__setattr__(train, "x", 1 - train.x)  # black on white instead of white on black
    heard = [MemoryTrace(recording.protocol) for _ in range(4)]
    for seed, trace in enumerate(heard):
        twin.run(trace, seed)
    assert unlike(recording, heard)


@pytest.mark.parametrize(
    ("said", "changes", "reason"),
    [
        ({"local_lr": None}, {}, "does not say local_lr"),
        ({"optimizer": "lion"}, {}, "'lion'"),
        ({}, {"model": {"name": "mlp", "widths": [25]}}, "of shape"),
        ({}, {"data": "made-up-people"}, "classes"),
    ],
)
def test_where_there_can_be_no_twin_one_sentence_says_why(
    said: dict[str, Any], changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    record_without_truth(plan_with(federation={"clients": 2, "rounds": 1}), tmp_path / "trace", **said)
    with pytest.raises(NoTwin, match=reason):
        Twin.of(FolderTrace(tmp_path / "trace"), plan_with(**changes))


def test_a_gap_in_the_recording_starts_the_twin_anew_from_the_recorded_model() -> None:
    deployment = Deployment.of(plan_with(federation={"clients": 4, "rounds": 5}))
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    kept = MemoryTrace.of([m for m in heard.messages() if m.round in (0, 1, 4)], heard.protocol)
    twin = Twin.of(kept, plan_with(seed=5))
    assert recorded_federation(kept).blocks == ((0, 2), (4, 1))
    again = MemoryTrace(kept.protocol)
    twin.run(again, 1)
    sent = {m.round: m.tensors for m in heard.messages("model")}
    for message in again.messages("model"):
        same = all(torch.equal(tensor, sent[message.round][name]) for name, tensor in message.tensors.items())
        assert same == (message.round in (0, 4))


def test_a_server_with_an_optimizer_of_its_own_is_told_from_one_that_averages() -> None:
    mean = torch.tensor([1.0, -2.0, 0.1])
    sums = [Message(0, AGGREGATOR, SERVER, "aggregate", {"w": mean})]
    averaged = server_move({0: {"w": torch.zeros(3)}, 1: {"w": 0.5 * mean}}, sums, LocalTraining())
    assert averaged is not None
    assert averaged.averages
    assert averaged.rate == pytest.approx(0.5)
    adam = server_move({0: {"w": torch.zeros(3)}, 1: {"w": 0.1 * mean.sign()}}, sums, LocalTraining())
    assert adam is not None
    assert not adam.averages
