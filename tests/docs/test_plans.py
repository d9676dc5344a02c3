"""The plans in examples/plans are sound, and each has the leak that it is there for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from audit_kit import audit
from commands import ROOT, commands, run_all

from fedspill.deployment.plan import Plan, read_plan

PLANS = ROOT / "examples" / "plans"
LEAKS = {
    "single-gradients": ("inputs", "inputs"),
    "people": ("planted", "attributes"),
    "vertical": ("cafe", "inputs"),
    "sentiment": ("words", "words"),
    "keyboard": ("next-words", "words"),
    "bank_and_shop": ("cone", "sample_labels"),
}


def test_every_plan_is_tested_and_told() -> None:
    found = {path.stem for path in PLANS.glob("*.toml")}
    assert found == LEAKS.keys()
    assert all(f"`{name}.toml`" in (PLANS / "README.md").read_text(encoding="utf-8") for name in found)


def scores(result: dict[str, Any], attack: str, family: str) -> list[dict[str, Any]]:
    """The scores of an attack, by every adversary that can run it."""
    scored = [found for found in result["findings"] if found["status"] == "ok" and found["attack"] == attack]
    assert {found["family"] for found in scored} == {family}
    return [found["score"] for found in scored]


@pytest.mark.parametrize("name", ["people", "single-gradients"])
def test_the_plan_has_its_leak(name: str, tmp_path: Path) -> None:
    """Of the quick ones, by one attack alone."""
    attack, family = LEAKS[name]
    written = read_plan(PLANS / f"{name}.toml").model_dump(mode="json")
    result = audit(Plan.model_validate({**written, "attacks": [attack], "candidates": []}), tmp_path / "out")
    assert all(score["low"] > score["chance"] for score in scores(result, attack, family))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(LEAKS))
def test_the_plan_runs_as_it_stands_and_has_its_leak(name: str, tmp_path: Path) -> None:
    """By the command that pages show for it; `make audit` does the same with two workers."""
    shutil.copytree(PLANS, tmp_path / "examples" / "plans")
    run_all(tmp_path, command(name))
    result = json.loads((tmp_path / f"{name}-audit" / "audit.json").read_text())
    assert result["verdict"]["complete"]
    assert all(score["low"] > score["chance"] for score in scores(result, *LEAKS[name]))


def command(name: str) -> list[str]:
    return ["fedspill", "audit", f"examples/plans/{name}.toml", "--out", f"{name}-audit"]


def test_pages_that_leave_their_commands_to_these_tests_have_no_others() -> None:
    known = [command(name)[1:] for name in LEAKS]
    for document in ("docs/words.md", "examples/plans/README.md"):
        assert commands(document)
        assert all(shown in known for shown in commands(document))


def test_make_audit_runs_the_default_plan_and_each_of_these() -> None:
    """The default plan is run by the first command of docs/audit.md, in test_commands.py."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(BIN)/fedspill audit --out fedspill-audit " in makefile
    assert "for plan in examples/plans/*.toml; do" in makefile
    assert commands("docs/audit.md")[0] == ["audit"]
