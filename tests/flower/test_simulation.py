"""Flower's simulation on Ray: the example app, and plans that Flower runs. Each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedspill.trace_folder import FolderTrace

HERE = Path(__file__).parent
pytest.importorskip("ray", reason="needs Ray: pip install 'fedspill[flower]'")


def run(*command: object, seconds: float) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def left_behind(folder: Path) -> list[str]:
    """Processes that still name the folder in their command line."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and str(os.getpid()) != process.parent.name:
            lines.append(words)
    return lines


@pytest.mark.slow
def test_the_example_in_simulation(tmp_path: Path) -> None:
    run(HERE / "simulate.py", 3, 2, tmp_path, seconds=240)
    trace = FolderTrace(tmp_path / "digits.trace")
    assert [len(list(trace.messages("update", round=number))) for number in range(2)] == [3, 3]
    assert trace.events == []
    last = list(trace.messages("aggregate"))[-1]
    (before,) = trace.messages("model", round=1)
    final = load_file(tmp_path / "model.safetensors")
    for name, step in last.tensors.items():
        assert torch.allclose(before.tensors[name] + step, final[name], atol=1e-6)
    assert left_behind(tmp_path) == []


def plan(folder: Path, **federation: Any) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"engine": "flower", **federation}.items()]
    text = "\n".join(["seed = 11", "[federation]", *lines, "[training]", "lr = 0.1", "batch_size = 16", ""])
    (folder / "plan.toml").write_text(text)
    return folder / "plan.toml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_clients_and_twenty_rounds_are_run_and_audited(tmp_path: Path) -> None:
    file = plan(tmp_path, clients=100, rounds=20)
    run("-m", "fedspill", "simulate", file, "--trace", tmp_path / "trace", seconds=1200)
    trace = FolderTrace(tmp_path / "trace")
    assert sum(1 for _ in trace.messages("update")) == 2000
    run("-m", "fedspill", "audit", "--trace", tmp_path / "trace", "--out", tmp_path / "audit", seconds=600)
    findings = json.loads((tmp_path / "audit" / "audit.json").read_text())["findings"]
    scored = {(f["attack"], f["adversary"]): f["score"] for f in findings if f["status"] == "ok"}
    assert scored["labels", "curious-server"]["n"] == 2000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_secure_aggregation_on_ray(tmp_path: Path) -> None:
    file = plan(tmp_path, clients=4, rounds=2, secure_aggregation=True)
    run("-m", "fedspill", "simulate", file, "--trace", tmp_path / "trace", seconds=600)
    trace = FolderTrace(tmp_path / "trace")
    assert {message.kind for message in trace.messages()} == {"model", "aggregate"}
    assert [total.info["clients"] for total in trace.messages("aggregate")] == [4, 4]
    run("-m", "fedspill", "audit", "--trace", tmp_path / "trace", "--out", tmp_path / "audit", seconds=600)
    findings = json.loads((tmp_path / "audit" / "audit.json").read_text())["findings"]
    assert "curious-server" not in {f["adversary"] for f in findings if f["status"] == "ok"}
    assert {f["status"] for f in findings if f["attack"] == "llbg" and f["adversary"] == "curious-server-secagg"} == {
        "ok"
    }
