"""The notebooks run as they are, and say what they said when they were last run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = ["attack_by_hand", "compare_defenses", "first_audit", "own_attack"]


def test_every_notebook_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def words(cell: Any) -> str:
    """What a cell printed, without figures: these may differ in a last digit from machine to machine."""
    printed = "".join(output.get("text", "") for output in cell.outputs)
    return " ".join(re.sub(r"[-+]?\d[\d.e+-]*", "#", printed).split())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs(name: str, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    told = [words(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "run it once and keep what it says"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [words(cell) for cell in notebook.cells if cell.cell_type == "code"] == told
