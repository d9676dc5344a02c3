"""Every Python block in docs/flower.md runs, and its plan is a plan."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

from fedspill.deployment.plan import check_plan
from fedspill.leaks.labels.labels import Labels
from fedspill.threat import adversary
from fedspill.trace_folder import FolderTrace

TEXT = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(blocks("python")) == 5
    for code in blocks("python"):
        exec(compile(code, "docs/flower.md", "exec"), names)
    assert type(names["strategy"]).__name__ == "RecordedFedAvg"
    assert type(names["summing"]).__name__ == "RecordedFedAvg"
    sent, *returned = ({"fc2.weight": torch.randn(10, 4), "fc2.bias": torch.randn(10)} for _ in range(3))
    names["after_round"](0, sent, dict(zip("ab", returned, strict=True)), {"a": 20, "b": 30})  # type: ignore[operator]
    names["recorder"].close()  # type: ignore[attr-defined]
    trace = FolderTrace(tmp_path / "other.trace")
    assert [message.sender for message in trace.messages()] == ["server", "client:a", "client:b", "aggregator"]
    guess = Labels()(trace.view(adversary("curious-server")), seed=0)
    assert guess.counts.sum(1).tolist() == [20, 30]  # type: ignore[attr-defined]


def test_the_recipe_for_other_frameworks_has_at_most_ten_lines() -> None:
    assert len(blocks("python")[-1].splitlines()) <= 10


def test_the_plan_is_valid_and_names_flower() -> None:
    (plan,) = blocks("toml")
    assert check_plan(tomllib.loads(plan), "docs/flower.md").federation.engine == "flower"
