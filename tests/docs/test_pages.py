"""What every page of a kind must have, so that a new one is told like the others; and blocks that no shell runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from commands import ROOT, blocks

from fedspill.audit.accepted import read_accepted
from fedspill.deployment.plan import check_plan
from fedspill.registry import entries

LEAKS = sorted(entry.name for entry in entries("leaks"))
PAPERS = sorted(path.name for path in (ROOT / "docs" / "papers").glob("0*.md"))
SECTIONS = ["What it means for people", "Who can do it", "The attacks", "When they fail", "What helps"]


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_reference_has_what_a_first_attack_is_made_of() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from (fedspill\.[\w.]+) import (.+)$", contributing, re.MULTILINE)
    names = [f"{module}.{name}" for module, several in imported for name in several.split(", ")]
    functions = [name for name in names if not name.rpartition(".")[2].isupper()]  # constants are in the example
    page = text("reference.md")
    assert [name for name in functions if f"::: {name}\n" not in page] == []


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_told_to_people_drawn_and_explained_with_its_mathematics(leak: str) -> None:
    page = text(f"leaks/{leak}.md")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [*SECTIONS, "How it is scored"]
    assert "```flow\n" in page
    attacks = page[page.index("## The attacks") : page.index("## When they fail")]
    assert re.search(r"^    \S.*(=|\^|argmin)", attacks, re.MULTILINE), "a few lines of mathematics, indented by four"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_has_its_figures_as_plots_and_leads_to_its_tables(paper: str) -> None:
    page = text(f"papers/{paper}")
    assert re.search(r"^```(bars|points)\n", page, re.MULTILINE)
    assert f"papers/{Path(paper).stem}/README.md" in page


def test_every_page_has_its_place_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in menu] == []


SETTINGS = ["defenses.md", "defenses_measured.md", "large_models.md", "membership.md", "vertical.md"]


@pytest.mark.parametrize("page", SETTINGS)
def test_settings_that_a_page_shows_are_lines_of_a_plan(page: str) -> None:
    shown = blocks(f"docs/{page}", "toml")
    assert shown
    for lines in shown:
        check_plan(tomllib.loads(lines), page)


def test_workflow_and_hook_of_the_ci_page_name_what_there_is(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    workflow, hooks = (yaml.safe_load(block) for block in blocks("docs/ci.md", "yaml"))
    (step,) = [step for step in workflow["jobs"]["audit"]["steps"] if "with" in step]
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    needed = {name for name, given in action["inputs"].items() if given.get("required")}
    assert needed <= step["with"].keys() <= action["inputs"].keys()
    known = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    assert {hook["id"] for repository in hooks["repos"] for hook in repository["hooks"]} <= known
    files = dict(re.findall(r"^```toml file=(\S+)\n(.*?)^```", text("ci.md"), re.MULTILINE | re.DOTALL))
    assert step["with"]["plan"] in files
    (tmp_path / "accept.toml").write_text(files[step["with"]["accept"]])
    assert read_accepted(tmp_path / "accept.toml").entries
