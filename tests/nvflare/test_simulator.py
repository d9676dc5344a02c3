"""Both examples in NVFlare's own simulator, with its server and client processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from fedspill.attack_run import Outcome, run_attack
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import Truth
from fedspill.trace_folder import FolderTrace
from fedspill.truth_table import brought_truth

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_job(folder: Path, log: Path, *arguments: Path) -> None:
    pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")
    with log.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "job.py", *arguments],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = job.wait(400)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # what the simulator leaves behind
    assert code == 0, log.read_text()[-3000:]


def outcome(trace: FolderTrace, truth: Truth | None = None) -> Outcome:
    return run_attack(make("attacks", "labels"), trace, adversary("curious-server"), seed=1, truth=truth)


def test_the_clients_of_the_examples_know_nothing_of_fedspill() -> None:
    clients = (EXAMPLES / "nvflare" / "client.py", EXAMPLES / "own" / "nvflare_job" / "client.py")
    assert not any("fedspill" in path.read_text(encoding="utf-8") for path in clients)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_of_ones_own_is_read_without_truth_and_scored_with_it(tmp_path: Path) -> None:
    run_job(EXAMPLES / "own" / "nvflare_job", tmp_path / "log", tmp_path / "out")
    trace = FolderTrace(tmp_path / "out" / "trace")
    assert [update.sender for update in trace.messages("update")] == 3 * [f"client:site-{n}" for n in (1, 2, 3)]
    assert trace.protocol["head_weight"] == "head.weight"
    assert not trace.events
    assert outcome(trace).status == "read"
    known = outcome(trace, brought_truth(trace, tmp_path / "out" / "truth"))
    assert (known.status, known.scores["label-asr"].n) == ("ok", 9)
    assert known.scores["label-asr"].value > 0.5  # of four classes; its batches are drawn anew in every run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_guarded_and_defended_clients_send_what_the_defense_lets_out(tmp_path: Path) -> None:
    run_job(EXAMPLES / "nvflare", tmp_path / "log", tmp_path / "workspace", tmp_path / "trace")
    trace = FolderTrace(tmp_path / "trace")
    updates = list(trace.messages("update"))
    assert sorted({update.sender for update in updates}) == ["client:site-1", "client:site-2"]
    assert len(updates) == 6
    for update in updates:
        norm = torch.stack([tensor.double().square().sum() for tensor in update.tensors.values()]).sum().sqrt()
        assert float(norm) == pytest.approx(0.5, rel=1e-4)
