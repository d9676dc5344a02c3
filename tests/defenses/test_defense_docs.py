"""The plans in docs/defenses.md are plans, and the table of defenses names every one there is."""

import re
import tomllib
from pathlib import Path

import pytest

from fedspill.defense import Defense
from fedspill.deployment.plan import check_plan, read_plan
from fedspill.registry import entries

TEXT = (Path(__file__).parents[2] / "docs" / "defenses.md").read_text(encoding="utf-8")
FRONTIER = Path(__file__).parents[2] / "benchmarks" / "frontier"
PLANS = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_is_one(plan: str) -> None:
    check_plan(tomllib.loads(plan), "docs/defenses.md")


def test_there_are_plans() -> None:
    assert PLANS


@pytest.mark.parametrize("path", sorted(FRONTIER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_plan_of_the_frontier_is_one_and_in_the_document(path: Path) -> None:
    plan = read_plan(path)
    assert plan.candidates
    assert path.stem in TEXT


def test_the_table_names_every_defense_once_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE)
    there = {entry.name for entry in entries("defenses") if not entry.is_plugin}
    assert sorted(named) == sorted(there)


def test_the_document_names_what_a_defense_may_change() -> None:
    hooks = ("data", "local", "outgoing", "returned", "labels", "incoming", "effect")
    assert all(f"`{hook}`" in TEXT or f"`{hook}()" in TEXT for hook in hooks)
    assert all(vars(Defense)[hook] for hook in hooks)
