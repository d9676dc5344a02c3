"""Every `repeat` command that a report prints gives the printed score again, for attacks that plant too."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from audit_kit import audit, here, tiny

from fedspill.audit.result import rounded
from fedspill.deployment.plan import Plan, read_plan

PLANS = Path(__file__).parents[2] / "examples" / "plans"


def repeated(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> int:
    """Runs every printed command and holds its score against the printed one; returns how many there were."""
    scored = [finding for finding in result["findings"] if finding["status"] == "ok"]
    for finding in scored:
        words = shlex.split(finding["repeat"])
        assert words[0] == "fedspill"
        again = tmp_path / "again.json"
        ended = here(*words[1:], "--json", again, monkeypatch=monkeypatch, capsys=capsys)
        assert ended.code == 0, ended.err
        score = json.loads(again.read_text())["scores"][finding["score"]["metric"]]
        for word in ("value", "low", "high", "chance"):
            assert rounded(score[word]) == finding["score"][word], (finding["id"], word)
        assert score["n"] == finding["score"]["n"]
    return len(scored)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("people", marks=pytest.mark.slow),
        "single-gradients",
        pytest.param("vertical", marks=pytest.mark.slow),
    ],
)
def test_every_command_of_the_example_plans_repeats_its_score(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = audit(read_plan(PLANS / f"{name}.toml"), tmp_path / "out")
    assert repeated(result, tmp_path, monkeypatch, capsys) > 0


def test_commands_of_a_horizontal_federation_repeat_their_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attacks = ["llbg", "labels", "composition-by-counts", "planted-membership"]
    plan = tiny(attacks=attacks, adversaries=["curious-server", "malicious-server"], targets={"after": 1})
    result = audit(plan, tmp_path / "out")
    assert repeated(result, tmp_path, monkeypatch, capsys) >= 4


@pytest.mark.slow
def test_every_command_of_the_default_plan_repeats_its_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = audit(Plan(candidates=()), tmp_path / "out")
    assert repeated(result, tmp_path, monkeypatch, capsys) > 10
