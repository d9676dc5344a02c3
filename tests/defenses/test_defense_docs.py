"""The plans in docs/defenses.md are plans, and the table of defenses names every one there is."""

import re
import tomllib
from pathlib import Path

import pytest

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


def test_every_defense_without_a_page_of_its_own_is_in_the_table() -> None:
    named = set(re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE))
    elsewhere = {entry.name for entry in entries("defenses")} - named
    assert elsewhere.isdisjoint({"clip-noise", "dp-sgd", "compression", "mixed-classes"})
    assert named <= {entry.name for entry in entries("defenses")}
