"""The example app in a real deployment: SuperLink, two SuperNodes, TLS, all on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deployed import deployment

from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.flower.engine import on_superlink
from fedspill.trace import MemoryTrace
from fedspill.trace_folder import FolderTrace

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "flower"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_record_and_guard_in_a_real_deployment(tmp_path: Path) -> None:
    with deployment(tmp_path) as deployed:
        deployed.run(EXAMPLE, f"trace='{tmp_path}/digits.trace'", "num-server-rounds=2")
        trace = FolderTrace(tmp_path / "digits.trace")
        assert [len(list(trace.messages("update", round=number))) for number in range(2)] == [2, 2]
        assert {update.info["examples"] for update in trace.messages("update")} == {898, 899}
        assert trace.events == []
        assert trace.protocol["head_weight"] == "fc2.weight"
        # Every message starts a new client process; what the guard remembers came with Flower's state.
        deployed.run(HERE / "guarded_app", f"trace='{tmp_path}/guarded.trace'")
        guarded = FolderTrace(tmp_path / "guarded.trace")
        assert [len(list(guarded.messages("update", round=number))) for number in range(2)] == [2, 0]
        refused = [e for e in guarded.events if e.what.startswith("failed: fedspill: guard refused the model: ")]
        assert len(refused) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plan_is_run_by_the_nodes_of_a_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"seed": 5, "federation": {"clients": 2, "rounds": 2}, "training": {"lr": 0.1, "batch_size": 16}}
    made = Deployment.of(check_plan(plan, "test"))
    own = MemoryTrace(made.protocol())
    made.federation(own, engine="loop").run()
    with deployment(tmp_path) as deployed:
        for name, value in deployed.environment.items():
            monkeypatch.setenv(name, value)
        on_superlink(made, tmp_path / "trace", "deployed", seconds=400)
    theirs = FolderTrace(tmp_path / "trace")
    for ours, flowers in zip(own.messages(), theirs.messages(), strict=True):
        assert (ours.round, ours.sender, ours.kind) == (flowers.round, flowers.sender, flowers.kind)
        assert all(torch.equal(ours.tensors[name], flowers.tensors[name]) for name in ours.tensors)
    assert theirs.truth().facts.keys() == own.truth().facts.keys()
