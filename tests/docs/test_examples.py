"""Every example in README and CONTRIBUTING is executed."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from commands import ROOT, blocks, commands, run_all, shown
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedspill.cli.main import app

# Of the README's plan in the fast suite: so much of it that every command has something to do.
TINY = {
    "attacks": ["labels", "llbg"],
    "adversaries": ["curious-server"],
    "candidates": [],
    "federation": {"clients": 3, "rounds": 1},
}


def write_checkpoints(folder: Path) -> None:
    """Two checkpoints and a gradient of a real model, as a reader of the README would have them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    x, y = torch.randn(128, 20), torch.randint(10, (128,))
    save_file(model.state_dict(), folder / "before.safetensors")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradient = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    save_file(gradient, folder / "gradient.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for part_x, part_y in zip(x.split(13), y.split(13), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(part_x), part_y).backward()
        optimizer.step()
    save_file(model.state_dict(), folder / "after.safetensors")


def test_the_readme_starts_with_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    first = [line.split("#")[0].strip() for line in blocks("README.md", "sh")[0].splitlines()]
    assert first == ["make audit", "make test"]
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE) for command in first)


def run_readme_commands(plan: str) -> None:
    """All commands of the README, in its order, in a folder that holds what its reader has.

    There are no data here, so that the table of a paper says of each row which files it wants; tests/papers runs rows.
    """
    write_checkpoints(Path())
    Path("plan.toml").write_text(plan, encoding="utf-8")
    found = commands("README.md")
    assert len(found) >= 5
    for arguments in found:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{arguments}\n{result.output}\n{result.exception!r}"
    assert Path("labels.json").is_file()
    assert Path("my-audit/report.html").is_file()
    assert json.loads(Path("table.json").read_text(encoding="utf-8"))["rows"]


def test_readme_commands_run_on_a_small_part_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSPILL_DATA", raising=False)
    plan = {**tomllib.loads(blocks("README.md", "toml")[0]), **TINY}
    run_readme_commands("\n".join(f"{key} = {inline(value)}" for key, value in plan.items()))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_readme_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSPILL_DATA", raising=False)
    run_readme_commands(blocks("README.md", "toml")[0])


def inline(value: object) -> str:
    """A value as TOML on one line; of such as are in the README, JSON differs in tables alone."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def test_readme_names_tables_that_exist() -> None:
    from fedspill.registry import find

    named = [arguments[1] for arguments in commands("README.md") if arguments[0] == "reproduce"]
    assert named
    assert all(find("papers", name) for name in named)


@pytest.mark.parametrize("code", blocks("README.md", "python"))
def test_readme_python_runs(
    code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "Score(" in capsys.readouterr().out


def test_the_attack_in_contributing_is_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedspill import Deployment, MemoryTrace, Plan, adversary

    (tmp_path / "one_class.py").write_text(blocks("CONTRIBUTING.md", "python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import one_class  # type: ignore[import-not-found]

    deployment = Deployment.of(Plan(seed=1))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace).run()
    guess = one_class.OneClass()(trace.view(adversary("curious-server")), seed=0)
    real = torch.stack([trace.truth().get(origin, "label_counts") for origin in guess.of])
    assert torch.equal(guess.counts.sum(1), real.sum(1))
    del sys.modules["one_class"]


SCORES = """
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.leaks.labels.guess import LabelCounts
from fedspill.metric import Measured, Metric


@final
@dataclass(frozen=True)
class LargestClass(Metric[LabelCounts]):
    name: ClassVar[str] = "largest-class"
    title: ClassVar[str] = "Largest class right"
    guesses = LabelCounts
    perfect: ClassVar[float] = 1.0

    def measure(self, guess, truth):
        real = torch.stack([truth.get(origin, "label_counts") for origin in guess.of])
        right = (guess.counts.argmax(1) == real.argmax(1)).double()
        return Measured(right, torch.full_like(right, 0.1), torch.ones(len(right)))
"""
LITTLE = """
adversaries = ["curious-server"]
candidates = []
federation = { clients = 3, rounds = 1 }
training = { lr = 0.1, batch_size = 16 }
"""


@pytest.mark.slow
def test_code_of_ones_own_is_named_as_contributing_says(tmp_path: Path) -> None:
    """Its attack, its defense and its lines of a plan as they stand there; of the metric it says the name alone."""
    attack, defense = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "my_lab").mkdir()
    for name, code in (("attacks", attack), ("defenses", defense), ("scores", SCORES)):
        (tmp_path / "my_lab" / f"{name}.py").write_text(code, encoding="utf-8")
    (tmp_path / "plan.toml").write_text(LITTLE + blocks("CONTRIBUTING.md", "toml")[0], encoding="utf-8")
    found = [["fedspill", *arguments] for arguments in shown("CONTRIBUTING.md")]
    assert len(found) == 2
    run_all(tmp_path, ["fedspill", "simulate", "plan.toml", "--trace", "my-federation"], *found)
    run_all(tmp_path, ["fedspill", "audit", "plan.toml", "--out", "my-audit"])
    findings = json.loads((tmp_path / "my-audit" / "audit.json").read_text())["findings"]
    assert {finding["attack"]: finding["status"] for finding in findings} == {
        "labels": "ok",
        "my_lab.attacks:OneClass": "ok",
    }
