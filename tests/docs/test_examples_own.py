"""The federations in examples/own run, with truth and without, and none takes 60 lines.

Those in Flower and NVFlare are run beside the tests of their adapters.
"""

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


def outcome_of(trace: Trace) -> tuple[str, int]:
    """How an attack on the labels ends, and how many updates are scored."""
    outcome = run_attack(make("attacks", "llbg"), trace, adversary("curious-server"), seed=1)
    score = outcome.scores.get("label-asr")
    return outcome.status, score.n if score else 0


@pytest.mark.parametrize(("folder", "updates"), [("hospitals", 24), ("tokens", 60)])
def test_a_plan_of_ones_own_is_scored_with_truth_and_read_without(
    folder: str, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = read_plan(OWN / folder / "plan.toml")
    deployment = Deployment.of(plan)
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    assert outcome_of(heard) == ("ok", updates)
    record_without_truth(plan, tmp_path / "trace")
    assert outcome_of(FolderTrace(tmp_path / "trace")) == ("read", 0)


def test_words_are_read_out_of_a_text_model_that_nobody_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    deployment = Deployment.of(read_plan(OWN / "tokens" / "plan.toml"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace).run()
    truth = trace.truth().beside(deployment.shares.clients)
    for who in ("curious-server", "eavesdropper"):
        outcome = run_attack(
            make("attacks", "embedding-rows"),
            trace,
            adversary(who),
            knowledge=deployment.knowledge(),
            seed=1,
            truth=truth,
        )
        found = outcome.scores["words-found"]
        assert found.value == outcome.scores["token-precision"].value == 1.0
        assert found.chance < 0.75, "the clients must not use all words there are"


@pytest.mark.parametrize(("words", "ends"), [([], ("read", 0)), (["truth"], ("ok", 18))])
def test_a_loop_of_ones_own_is_recorded(words: list[str], ends: tuple[str, int], tmp_path: Path) -> None:
    script = str(OWN / "backbone_loop" / "federate.py")
    subprocess.run([sys.executable, script, str(tmp_path / "trace"), *words], check=True, timeout=120)
    assert outcome_of(FolderTrace(tmp_path / "trace")) == ends


def test_each_takes_less_than_sixty_lines() -> None:
    for folder in (path for path in OWN.iterdir() if path.is_dir()):
        lines = sum(len(path.read_text().splitlines()) for path in folder.glob("*.py"))
        assert 0 < lines < 60, folder
