"""On Ray clusters: the same results as on one machine, also where a node dies and without a shared folder."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_kit import audit, command, environment, outcomes, timeless, tiny, write_plan

from fedspill.audit.code_fingerprint import fingerprint
from fedspill.audit.cost_estimate import needs_of
from fedspill.audit.data_digest import data_digest
from fedspill.audit.other_machine import refuse_other_machine
from fedspill.audit.private_folder import elsewhere
from fedspill.audit.ray_unit import forget_recordings
from fedspill.audit.recordings import Recordings
from fedspill.audit.target import AS_DEPLOYED, Target
from fedspill.audit.unit_needs import UnitNeeds, gpus_of
from fedspill.errors import UsageError

HERE = Path(__file__).parent
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
CANDIDATES = [{"name": "clip-noise", "strengths": [{"sigma": 0.001}, {"sigma": 1.0}]}]


def run(folder: Path, words: list[str], **extra: str) -> None:
    pytest.importorskip("ray", reason="needs the extra fedspill[ray]")
    env = environment(**QUIET, **extra)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr


def on_a_cluster(folder: Path, *words: str, **extra: str) -> Path:
    run(folder, [sys.executable, str(HERE / "on_a_cluster.py"), "plan.toml", "out", *words], **extra)
    return folder / "out"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_gives_identical_results(audited: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.toml", candidates=CANDIDATES, try_from="low")
    run(tmp_path, command("audit", "plan.toml", "--out", "out", "--workers", "2", "--ray", "local"))
    assert outcomes(tmp_path / "out") == outcomes(audited[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_two_nodes_one_is_killed_and_audit_json_is_the_same(tmp_path: Path) -> None:
    """Of four federations, eight attacks that take seconds, and two controls: in the middle of the attacks."""
    changes = {"attacks": ["labels", "composition-by-counts"], "adversaries": ["curious-server"], "repeats": 4}
    write_plan(tmp_path / "plan.toml", **changes)
    out = on_a_cluster(tmp_path, "5")
    assert (out / "killed").exists()
    here = audit(tiny(**changes), tmp_path / "here")
    assert outcomes(out) == outcomes(tmp_path / "here")
    assert timeless(json.loads((out / "audit.json").read_text())) == timeless(here)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_attack_on_a_node_does_not_reach_ray(tmp_path: Path) -> None:
    """Whoever reaches the sockets of Ray runs code outside the seal, on every machine."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as place:  # names of sockets must be short
        (tmp_path / "curious.py").write_text(CURIOUS.replace("PLACE", place))
        write_plan(tmp_path / "plan.toml", attacks=["curious:Curious"], adversaries=["curious-server"])
        out = on_a_cluster(tmp_path, RAY_TMPDIR=place)
    (finding,) = json.loads((out / "audit.json").read_text())["findings"]
    if any("unsealed" in note for note in finding["notes"]):
        pytest.skip("this system has no namespaces")
    assert "saw 1 folders, 0 sockets, 0 logs" in finding["notes"], finding


CURIOUS = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final
import torch
from fedspill.attack import Attack
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.leak import LABELS
from fedspill.threat import needs
from fedspill.trace import Origin


@final
@dataclass(frozen=True)
class Curious(Attack):
    name: ClassVar[str] = "curious"
    title: ClassVar[str] = "Looks for Ray"
    paper: ClassVar[str] = "none"
    needs = needs(sees=["update"])
    leak = LABELS

    def run(self, view, rng):
        of = [Origin(message.round, message.sender) for message in view.get("update")]
        folders, sockets, logs = (
            len(list(Path("PLACE").glob(f"ray/session_2*/{what}"))) for what in ("sockets", "sockets/*", "logs/*")
        )
        counts = torch.ones(len(of), int(view.public["classes"]), dtype=torch.int64)
        return LabelCounts(of, counts, notes=(f"saw {folders} folders, {sockets} sockets, {logs} logs",))
"""


def test_a_machine_that_does_not_see_the_folder_records_the_same_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "their-disk"))
    plan = tiny()
    ours, theirs = Target(plan, tmp_path, "code"), Target(plan, tmp_path / "not-shared", "code")
    there, here = (Recordings(one).record(AS_DEPLOYED, plan.seed) for one in (theirs, ours))
    assert here.status == "ok"
    assert there.trace == here.trace  # a hash over all of the recording
    assert ours.trace_folder(AS_DEPLOYED, plan.seed).is_relative_to(tmp_path / "traces")
    assert any(elsewhere(theirs.folder).rglob("index.jsonl"))
    assert elsewhere(theirs.folder).is_relative_to(tmp_path / "their-disk")
    forget_recordings(str(theirs.folder))
    assert not elsewhere(theirs.folder).exists()


def test_other_data_or_other_code_on_a_machine_are_found_out(tmp_path: Path) -> None:
    plan = tiny()
    target = Target(plan, tmp_path, fingerprint(plan))
    digest = data_digest(target)
    assert digest == data_digest(replace(target, plan=tiny(seed=8)))
    smaller = tiny(data={"name": "made-up-people"})
    assert digest != data_digest(replace(target, plan=smaller))
    refuse_other_machine(target, digest)
    with pytest.raises(UsageError, match="other data"):
        refuse_other_machine(target, "another")
    with pytest.raises(UsageError, match="code is another"):
        refuse_other_machine(replace(target, code="another"), digest)
    with pytest.raises(UsageError, match="does not see"):
        refuse_other_machine(replace(target, trace=tmp_path / "nowhere"), digest)


def test_what_runs_on_a_node_loads_no_torch() -> None:
    """The worker's process has it; each node would hold it twice, and wait for it twice."""
    seen = "import sys, fedspill.audit.ray_unit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], env=environment(), check=False).returncode == 0


def test_memory_is_set_aside_for_a_unit_and_no_more_than_it_may_take(tmp_path: Path) -> None:
    usual = needs_of(Target(tiny(), tmp_path, ""))
    wide = needs_of(Target(tiny(model={"name": "mlp", "widths": [20000]}), tmp_path, ""))
    assert 512 << 20 < usual.memory < wide.memory <= 4096 << 20
    least = needs_of(Target(tiny(limits={"memory_mb": 512}), tmp_path, ""))
    assert (least.memory, least.cpus, least.gpus) == (512 << 20, 1, 0)
    shared = needs_of(Target(tiny(device="cuda", limits={"gpu_share": 0.25}), tmp_path, ""))
    assert shared.gpus == 0.25


def test_a_unit_is_placed_where_there_is_room() -> None:
    small, large = {"CPU": 4.0, "memory": 2e9}, {"CPU": 1.0, "GPU": 1.0, "memory": 8e9}
    assert UnitNeeds(1 << 30).times(small) == 1
    assert UnitNeeds(4 << 30).times(small) == 0
    assert UnitNeeds(1 << 30).times({**large, "CPU": 16.0}) == 7
    assert UnitNeeds(1 << 30, gpus=gpus_of("cuda", 0.5)).times({**large, "CPU": 16.0}) == 2
    assert UnitNeeds(4 << 30, gpus=gpus_of("cuda", 0.5)).times(large) == 1
    assert UnitNeeds(1 << 30, gpus=gpus_of("cuda", 0.5)).times(small) == 0
    assert UnitNeeds(1 << 30).times({"CPU": 0.0, "memory": 8e9}) == 0
    with pytest.raises(UsageError, match="Ray chooses the GPU"):
        gpus_of("cuda:1", 1.0)
