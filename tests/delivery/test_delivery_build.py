"""Wheel and sdist: the same bytes from the same files, a bill of materials inside, and enough to work by themselves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling")
# One group: a single worker builds the wheel, for all of these.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("release")]
ROOT = Path(__file__).parents[2]
TINY = """
attacks = ["llbg"]
adversaries = ["curious-server"]
candidates = []
federation = {clients = 3, rounds = 1}
training = {lr = 0.1, batch_size = 16}
"""


def copied(folder: Path) -> Path:
    """The files of the repository as a checkout elsewhere and at another time has them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("needs a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "sbom.py"), str(folder / "sbom.cdx.json")], check=True)
    return folder


def build(source: Path, to: Path) -> dict[str, str]:
    """Hash of each file that a build makes, by name."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(to)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in to.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build(copied(tmp_path_factory.mktemp("first")), to := tmp_path_factory.mktemp("dist"))
    return to


def test_two_builds_are_the_same_bytes(built: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)  # another user's habits
    try:
        again = build(copied(tmp_path / "second"), tmp_path / "dist")
    finally:
        os.umask(before)
    assert len(again) == 2
    assert again == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built.iterdir()}


def test_the_wheel_holds_the_bill_of_materials_and_the_tables(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (bill,) = [name for name in names if name.endswith(".dist-info/sboms/sbom.cdx.json")]
        assert json.loads(archive.read(bill))["bomFormat"] == "CycloneDX"
        # What `pipx run` and `uvx` start: a command of the package's own name.
        (points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        started = re.search(r"^\[console_scripts\]\nfedspill = (\S+)$", archive.read(points).decode(), re.MULTILINE)
        assert started is not None
        assert callable(EntryPoint("fedspill", started[1], "console_scripts").load())
    assert "fedspill/papers/003/tables.py" in names
    assert "fedspill/py.typed" in names


def test_the_wheel_alone_audits_reports_reproduces_and_prints_schemas(built: Path, tmp_path: Path) -> None:
    """Installed by itself in front of everything else, outside the repository, without data and without make."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    here = tmp_path / "work"
    here.mkdir()
    (here / "plan.toml").write_text(TINY)
    environment = {name: value for name, value in os.environ.items() if name != "FEDSPILL_DATA"}
    environment |= {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    assert str(tmp_path / "installed") in run("-c", "import fedspill; print(fedspill.__file__)")
    assert json.loads(run("-m", "fedspill", "schema", "plan"))["title"] == "Fedspill plan"
    run("-m", "fedspill", "audit", "plan.toml", "--out", "out")
    run("-m", "fedspill", "report", "out", "--markdown", "report.md")
    assert (here / "report.md").read_text().startswith("## Fedspill")
    # ImageNet is nowhere: the table says so for each row, and which files it would want.
    assert "imagenet" in run("-m", "fedspill", "reproduce", "003/2").lower()
