"""record_round in loops of others: what comes out of it is what went over the wire, also in pfl-research."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedspill import record_round
from fedspill.attack_run import run_attack
from fedspill.errors import UsageError
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace_folder import FolderTrace


def state(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).state_dict()


def test_updates_are_what_came_back_minus_what_was_handed_out(tmp_path: Path) -> None:
    with record_round(tmp_path / "trace", lr=0.1, batch_size=5) as recorder:
        recorder(0, state(0), {"a": (state(1), 30), "b": (state(2), 10)})
    trace = FolderTrace(tmp_path / "trace")
    one, two = trace.messages("update")
    assert torch.equal(one.tensors["0.weight"], state(1)["0.weight"] - state(0)["0.weight"])
    assert "1.num_batches_tracked" not in one.tensors  # counters are state
    (mean,) = trace.messages("aggregate")
    assert torch.allclose(mean.tensors["2.bias"], 0.75 * one.tensors["2.bias"] + 0.25 * two.tensors["2.bias"])
    assert (trace.protocol["head_weight"], trace.protocol["classes"]) == ("2.weight", 3)


def test_labels_make_it_scored(tmp_path: Path) -> None:
    for name, labels, status in (("with", {"a": torch.tensor([0, 1, 1])}, "ok"), ("without", None, "read")):
        with record_round(tmp_path / name, lr=0.1, batch_size=3) as recorder:
            recorder(0, state(0), {"a": (state(1), 3)}, labels=labels)
        trace = FolderTrace(tmp_path / name)
        assert run_attack(make("attacks", "llg"), trace, adversary("curious-server"), seed=1).status == status


def test_what_was_not_handed_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not handed out: more"), record_round(tmp_path / "trace") as recorder:
        recorder(0, state(0), {"a": {**state(1), "more": torch.zeros(2)}})


def test_a_federation_of_pfl_is_recorded(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        reason = "needs pfl-research: pip install pfl"
        pytest.importorskip("pfl.algorithm.federated_averaging", reason=reason)
        from pfl_loop import CLIENTS, ROUNDS, own_labels, run

        with record_round(tmp_path / "trace", lr=0.1, batch_size=10, head="head") as recorder:
            final: dict[str, Any] = run(recorder)
    trace = FolderTrace(tmp_path / "trace")
    updates = list(trace.messages("update"))
    assert len(updates) == CLIENTS * ROUNDS
    assert {update.sender for update in updates} == {f"client:{index}" for index in range(CLIENTS)}
    models, sums = list(trace.messages("model")), list(trace.messages("aggregate"))
    for name, tensor in models[0].tensors.items():  # the recorded sums are the steps that pfl took
        moved = sum(step.tensors[name] for step in sums)
        assert torch.allclose(tensor + moved, final[name], atol=1e-5), name
    outcome = run_attack(make("attacks", "labels"), trace, adversary("curious-server"), seed=1)
    assert outcome.status == "ok"
    assert outcome.scores["label-asr"].n == CLIENTS * ROUNDS
    assert int(own_labels(0).bincount(minlength=3).sum()) == updates[0].info["examples"]
