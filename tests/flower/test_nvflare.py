"""The recipe for NVFlare, run in NVFlare's simulator where it is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedspill.leaks.labels.labels import Labels
from fedspill.threat import adversary
from fedspill.trace_folder import FolderTrace

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"


def test_the_clients_of_the_example_know_nothing_of_fedspill() -> None:
    assert not any("fedspill" in (EXAMPLE / name).read_text(encoding="utf-8") for name in ("client.py", "task.py"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nvflare_writes_a_trace(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs NVFlare: pip install 'fedspill[nvflare]'")
    command = [sys.executable, "job.py", tmp_path / "workspace", tmp_path / "trace"]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, cwd=EXAMPLE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = job.wait(400)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # what the simulator leaves behind
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    trace = FolderTrace(tmp_path / "trace")
    updates = list(trace.messages("update"))
    assert sorted({update.sender for update in updates}) == ["client:site-1", "client:site-2"]
    assert len(updates) == 6
    guess = Labels()(trace.view(adversary("curious-server")), seed=0)
    assert guess.counts.sum(1).tolist() == [update.info["examples"] for update in updates]  # type: ignore[attr-defined]
