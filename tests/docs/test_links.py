"""No link within the repository is dead: of Markdown files and notebooks, to files, folders and places in them."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"^[a-z]+:")


def tracked() -> list[Path]:
    """Markdown and notebooks that belong to the repository; in a plain copy of it, all that there are."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    folders = ("docs", "papers", "examples", "benchmarks")
    return [*ROOT.glob("*.md"), *(path for name in folders for path in (ROOT / name).rglob("*.md"))]


@cache
def prose(path: Path) -> str:
    """The text without code blocks, in which brackets are no links."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def places(path: Path) -> set[str]:
    """The anchors of a document: its headings, as both GitHub and MkDocs write them."""
    heads = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in heads}


@pytest.mark.parametrize("path", tracked(), ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(path: Path) -> None:
    dead = []
    for link in LINK.findall(prose(path)):
        if OUTSIDE.match(link):
            continue
        name, _, place = link.partition("#")
        target = (path.parent / name) if name else path
        if not target.exists() or (place and target.is_file() and place not in places(target)):
            dead.append(link)
    assert dead == []
