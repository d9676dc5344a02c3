"""Every command of the manual is one that there is; `make test-docs` runs every one of them, as it stands there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from commands import ROOT, blocks, commands, files, lines, run_all, shown, tops

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
# A table of which one client sends the gradient of a few records, for attacks on records.
RECORDS = """
data = { name = "made-up-people" }
model = { name = "mlp", widths = [32, 32] }
partition = { name = "uniform-batch", batch = 4 }
federation = { clients = 1, rounds = 1 }
training = { algorithm = "fedsgd", lr = 0.01, batch_size = 4 }
"""
PLANS = {"docs/records.md": RECORDS}  # the others have the small one, unless they write one themselves
# What a page takes for granted: recordings and audits of an earlier step.
BEFORE = {
    "docs/read_the_report.md": ["audit plan.toml --out my-audit", "audit plan.toml --out changed-audit --seed 8"],
    "docs/explain_a_finding.md": ["audit plan.toml --out my-audit"],
    "docs/membership.md": ["simulate plan.toml --trace my-federation"],
    "docs/records.md": ["simulate plan.toml --trace my-federation"],
    "docs/ci.md": ["audit audit.toml --out gate-before"],
}
ELSEWHERE = {
    "README.md": "test_examples.py; its two commands of make are those that CI and test_plans.py run",
    "docs/bring_your_own.md": "test_bring_your_own.py",
    "docs/flower.md": "test_flower_page.py",
    "docs/gpu.md": "by hand, on a machine with a GPU",
    "docs/words.md": "test_plans.py",
    "examples/plans/README.md": "test_plans.py",
}
# Blocks marked `skip`, page by page, and why no test runs them as they stand.
SKIPPED = {
    "docs/start.md": "installations; tests/delivery has the wheel by itself",
    "docs/delivery.md": "installations and a container; tests/delivery has the wheel by itself and the container",
    "docs/cluster.md": "a cluster of several machines; the one that is made on this machine is in ALL_THE_SAME",
    "docs/papers/index.md": "the same command as in the README, which test_examples.py runs",
    "docs/planted.md": "needs a recording with rounds enough for its option: ALL_THE_SAME",
    "examples/kuberay/README.md": "a Kubernetes cluster; test_kuberay_example.py reads the manifest",
}
# Commands in such blocks that one machine can run: the plan, what comes before, and a word by which it is known.
PLANTED = "federation = { clients = 3, rounds = 6 }\ntraining = { lr = 0.1, batch_size = 16 }\n"
ALL_THE_SAME: dict[str, tuple[str, list[str], str]] = {
    "docs/cluster.md": (SMALL, [], "--ray"),
    "docs/planted.md": (PLANTED, ["simulate plan.toml --trace my-federation"], "planted-inputs"),
}


def test_every_page_with_a_block_that_is_skipped_has_its_reason_here() -> None:
    assert {name for name in DOCUMENTS if blocks(name, "sh skip")} == SKIPPED.keys()


def test_every_command_of_a_page_is_run_here_or_has_its_place_elsewhere() -> None:
    """Programs other than ours are run where a page has its own test."""
    others = {name for name in DOCUMENTS if any(words[0] != "fedspill" for words in lines(name))}
    assert others <= ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= set(WITH_COMMANDS)


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
    "docs/nvflare.md": "tests/nvflare/test_nvflare_docs.py, by `make test-nvflare`: CI does not install NVFlare",
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", [name for name in WITH_COMMANDS if name not in ELSEWHERE])
def test_commands_run(document: str, tmp_path: Path) -> None:
    """In a folder as a reader has it: the page's own files, and what earlier pages have made."""
    if not any(arguments[:2] == ["init", "plan.toml"] for arguments in commands(document)):
        (tmp_path / "plan.toml").write_text(PLANS.get(document, SMALL))
    (tmp_path / "patients.csv").write_text(PATIENTS)
    for name, text in files(document).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run_all(tmp_path, *(["fedspill", *before.split()] for before in BEFORE.get(document, [])))
    wanted = tops(document)
    for words in lines(document):
        run_all(tmp_path, words)
        for path in [tmp_path / name for name in wanted if (tmp_path / name).exists()]:
            path.write_text(wanted.pop(path.name) + path.read_text())
    assert not wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", sorted(ALL_THE_SAME))
def test_of_what_is_skipped_this_runs_all_the_same(document: str, tmp_path: Path) -> None:
    plan, before, word = ALL_THE_SAME[document]
    if word == "--ray":
        pytest.importorskip("ray", reason="needs the extra fedspill[ray]")
    (tmp_path / "plan.toml").write_text(plan)
    (found,) = [words for words in lines(document, "sh skip") if word in words and "auto" not in words]
    run_all(tmp_path, *(["fedspill", *earlier.split()] for earlier in before), found)
