"""The gate in examples/ci passes where it should: on its own plan, with its own list of accepted findings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_gate_runs_as_it_stands_there(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "ci", tmp_path / "ci")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "test_audit.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path / "ci", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
