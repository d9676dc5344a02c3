"""On a local Ray cluster: the same results as in processes of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from audit_kit import command, environment, outcomes, write_plan

pytest.importorskip("ray", reason="needs the extra fedspill[ray]")


@pytest.mark.slow
def test_ray_gives_identical_results(audited: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    candidates = [{"name": "clip-noise", "strengths": [{"sigma": 0.001}, {"sigma": 1.0}]}]
    write_plan(tmp_path / "plan.toml", candidates=candidates, try_from="low")
    words = command("audit", "plan.toml", "--out", "out", "--workers", "2", "--ray", "local")
    env = environment(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path / "out") == outcomes(audited[0])
