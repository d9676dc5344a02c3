"""The gate in examples/ci passes where it should: on its own plan, with its own list of accepted findings."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedspill.deployment.plan import read_plan

ROOT = Path(__file__).parents[2]


def test_text_workflow_and_test_have_the_bar_of_the_plan() -> None:
    """A second bar beside it would be the one that somebody forgets to change."""
    folder = ROOT / "examples" / "ci"
    bar = read_plan(folder / "audit.toml").fail_on
    assert bar is not None
    level = re.compile(r"\b(low|medium|high|critical)\b", re.IGNORECASE)
    assert set(level.findall((folder / "README.md").read_text(encoding="utf-8"))) == {bar}
    for name in (".github/workflows/fedspill.yml", "test_audit.py"):
        assert level.findall((folder / name).read_text(encoding="utf-8")) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_gate_runs_as_it_stands_there(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "ci", tmp_path / "ci")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "test_audit.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path / "ci", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
