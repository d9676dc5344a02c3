"""Every command of the manual is one that there is; in `make test-all` every one of them is run, as it stands there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import ROOT, blocks, commands, files, shown

from fedspill.cli.main import _imported
from fedspill.deployment.plan import check_plan

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*/README.md", "papers/*/README.md")
    for path in ROOT.glob(pattern)
)
WITH_COMMANDS = [document for document in DOCUMENTS if commands(document)]
# The plan of one's own that pages speak of.
SMALL = """
attacks = ["labels", "llbg", "membership"]
adversaries = ["curious-server", "curious-server-secagg"]
candidates = []
[federation]
clients = 3
rounds = 2
[training]
lr = 0.1
batch_size = 16
[membership]
members = 20
others = 100
[[defenses]]
name = "clip-noise"
clip = 1.0
sigma = 0.1
"""
# A table of one's own: patient, hospital, age, sex, blood pressure, outcome.
PATIENTS = "patient,hospital,age,sex,pressure,outcome\n" + "\n".join(
    f"p{n},h{n % 6},{20 + 7 * n % 70},{'fm'[n % 2]},{90 + 11 * n % 90},{int(n % 7 > 3)}" for n in range(200)
)
# What a page takes for granted: recordings and audits of an earlier step.
BEFORE = {
    "docs/read_the_report.md": ["audit plan.toml --out my-audit"],
    "docs/explain_a_finding.md": ["audit plan.toml --out my-audit"],
    "docs/membership.md": ["simulate plan.toml --trace my-federation"],
}
# Exit codes that a reader is told of: findings, and a recording that was read. All others are failures.
TOLD = (0, 1, 5)
TESTED_ELSEWHERE = {
    "README.md": "test_examples.py",
    "docs/flower.md": "tests/flower, which starts Flower for its commands",
    "docs/gpu.md": "by hand, on a machine with a GPU",
    "docs/records.md": "tests/leaks/records; TabLeak at its full size takes an hour",
}


def test_the_pages_that_teach_have_commands() -> None:
    assert {"docs/start.md", "docs/ci.md", "docs/read_the_report.md", "docs/audit.md"} <= set(WITH_COMMANDS)


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if shown(document)])
def test_commands_exist_with_their_options(document: str) -> None:
    for command, *arguments in shown(document):
        _imported(command).make_context(command, list(arguments))  # refuses what it does not know


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if files(document)])
def test_plans_that_are_shown_whole_are_plans(document: str) -> None:
    for name, text in files(document).items():
        if name.endswith(".toml") and "[[accept]]" not in text and document != "docs/bring_your_own.md":
            check_plan(tomllib.loads(text), f"{document}: {name}")


PYTHON_HERE = ["docs/audit.md", "docs/dp_audit.md", "docs/guards.md", "docs/reference.md"]
PYTHON_ELSEWHERE = {
    "README.md": "test_examples.py",
    "CONTRIBUTING.md": "test_examples.py and tests/conformance",
    "docs/flower.md": "tests/flower/test_docs.py",
    "docs/nvflare.md": "tests/nvflare/test_nvflare_docs.py",
}


def test_all_python_that_is_shown_is_run_somewhere() -> None:
    """Blocks with `file=` apart, which test_bring_your_own.py runs."""
    assert {name for name in DOCUMENTS if blocks(name, "python")} == {*PYTHON_HERE, *PYTHON_ELSEWHERE}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if name == "docs/audit.md" else [])
        for name in PYTHON_HERE
    ],
)
def test_its_python_runs(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if document in ("docs/guards.md", "docs/dp_audit.md"):
        pytest.importorskip("flwr", reason="needs flwr")
    monkeypatch.chdir(tmp_path)
    assert blocks(document, "python")
    for code in blocks(document, "python"):
        exec(compile(code, document, "exec"), {"__name__": "document"})


def fedspill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}
    command = [sys.executable, "-m", "fedspill", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", [name for name in WITH_COMMANDS if name not in TESTED_ELSEWHERE])
def test_commands_run(document: str, tmp_path: Path) -> None:
    """In a folder as a reader has it: the page's own files, the examples, and what earlier pages have made."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if not any(arguments[:2] == ["init", "plan.toml"] for arguments in commands(document)):
        (tmp_path / "plan.toml").write_text(SMALL)
    (tmp_path / "patients.csv").write_text(PATIENTS)
    for name, text in files(document).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for before in BEFORE.get(document, []):
        assert fedspill(tmp_path, *before.split()).returncode in TOLD
    for arguments in commands(document):
        done = fedspill(tmp_path, *arguments)
        assert done.returncode in TOLD, f"fedspill {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
