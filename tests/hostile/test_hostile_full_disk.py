"""A disk that is full at any moment: the audit says so, and with more room the same command ends as if it never was."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from audit_kit import command, environment, timeless, write_plan

SIZES, PARTS = 10, 5  # fifty in all
PLAN = {
    "attacks": ["llbg"],
    "adversaries": ["curious-server"],
    "candidates": [{"name": "clip-noise", "strengths": [{"sigma": 1.0}]}],
    "try_from": "low",
}
# A file system of its own size, seen by this shell alone. It tells the codes of both runs and keeps the last result.
SCRIPT = """
mount -t tmpfs -o size="$1"k tmpfs small || exit 99
$2; echo $? > first
mount -o remount,size=500m small
$2; echo $? > second
cp small/out/audit.json .
"""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not can_mount(), reason="needs a system that lets users mount a small file system")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_full_disk_is_never_a_green_result_and_nothing_is_lost(tmp_path: Path, part: int) -> None:
    rng = random.Random(part)
    whole = run(tmp_path / "whole", 500_000)
    assert whole[:2] == (0, 0)
    needed = sum(file.stat().st_size for file in (tmp_path / "whole").rglob("*") if file.is_file()) // 1024
    full = 0
    for number in range(SIZES):
        first, second, result = run(tmp_path / str(number), rng.randint(8, max(2 * needed, 1200)))
        assert first in (0, 2, 3), first
        assert second == 0
        assert result == whole[2]
        full += first != 0
    assert full >= SIZES // 4  # the sizes are worth trying


def run(folder: Path, kilobytes: int) -> tuple[int, int, dict[str, object]]:
    """The codes of a run on a disk of so many kilobytes and of one with room enough, and the result of the latter."""
    (folder / "small").mkdir(parents=True)
    write_plan(folder / "plan.toml", **PLAN)
    audit = " ".join(command("audit", "plan.toml", "--out", "small/out"))
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh", str(kilobytes), audit]
    subprocess.run(words, cwd=folder, env=environment(), capture_output=True, check=True)
    codes = [int((folder / name).read_text()) for name in ("first", "second")]
    return codes[0], codes[1], timeless(json.loads((folder / "audit.json").read_text()))
