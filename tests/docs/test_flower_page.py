"""The commands of the page on Flower, on the example app: Flower starts its own simulation on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import ROOT, lines, run

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_runs_and_its_recording_is_audited(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs flwr")
    pytest.importorskip("ray", reason="needs Ray")
    app = tmp_path / "app"
    shutil.copytree(ROOT / "examples" / "flower", app, ignore=shutil.ignore_patterns("__pycache__", "*.trace"))
    start, audit = lines("docs/flower.md")
    started = run(app, *start, FLWR_HOME=str(tmp_path / "flwr"), **QUIET)
    assert started.returncode == 0, started.stdout + started.stderr
    audited = run(app, *audit)
    assert audited.returncode == 5, audited.stdout + audited.stderr  # read, and no truth to hold it against
