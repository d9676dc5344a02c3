"""The federations in examples/own run, with truth and without, and none takes more than 60 lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from audit_kit import record_without_truth

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import read_plan
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace, Trace
from fedspill.trace_folder import FolderTrace

OWN = Path(__file__).parents[2] / "examples" / "own"


def outcome_of(trace: Trace) -> tuple[str, float]:
    """How an attack on the labels ends, and how far above chance it is."""
    outcome = run_attack(make("attacks", "llbg"), trace, adversary("curious-server"), seed=1)
    score = outcome.scores.get("label-asr")
    return outcome.status, score.low - score.chance if score else 0.0


@pytest.mark.parametrize("folder", ["hospitals", "tokens"])
def test_a_plan_of_ones_own_leaks_labels_and_is_read_without_truth(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = read_plan(OWN / folder / "plan.toml")
    deployment = Deployment.of(plan)
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    status, gain = outcome_of(heard)
    assert status == "ok"
    assert gain > 0
    record_without_truth(plan, tmp_path / "trace")
    assert outcome_of(FolderTrace(tmp_path / "trace"))[0] == "read"


@pytest.mark.parametrize(("words", "status"), [([], "read"), (["truth"], "ok")])
def test_a_loop_of_ones_own_is_recorded(words: list[str], status: str, tmp_path: Path) -> None:
    script = str(OWN / "backbone_loop" / "federate.py")
    subprocess.run([sys.executable, script, str(tmp_path / "trace"), *words], check=True, timeout=120)
    ended, gain = outcome_of(FolderTrace(tmp_path / "trace"))
    assert ended == status
    assert gain > 0 or not words


def test_none_takes_more_than_sixty_lines() -> None:
    for path in OWN.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, path
