"""Killed at any moment, the same command finishes with the same result; interrupted, it stops soon and keeps all."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from audit_kit import command, environment, outcomes, stored, write_plan

# A federation for each of 4 seeds, 6 controls, 6 attacks on each: 34 units.
THIRTY = {
    "attacks": ["llbg", "ebi", "llg", "llbg-gamma", "llbg-aux", "labels"],
    "adversaries": ["curious-server"],
    "repeats": 4,
    "federation": {"clients": 3, "rounds": 1},
}


def heed_interrupts() -> None:
    """Whoever runs the tests may ignore SIGINT (nohup, a job in the background), and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("audit", "plan.toml", "--out", "out", *words),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_interrupts,
    )


def finished(folder: Path, *words: str) -> str:
    process = start(folder, *words)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def survive(tmp_path: Path, kills: int, seed: int) -> None:
    """Kills audits at random moments of their work, each several times, until they get through."""
    whole = tmp_path / "whole"
    whole.mkdir()
    write_plan(whole / "plan.toml", **THIRTY)
    finished(whole)
    units = stored(whole / "out")
    assert units == 34
    expected = outcomes(whole / "out")
    rng = random.Random(seed)
    killed = 0
    while killed < kills:
        folder = tmp_path / f"killed-{killed}"
        folder.mkdir()
        write_plan(folder / "plan.toml", **THIRTY)
        before = 0
        while killed < kills and before < units:
            process = start(folder)
            until = before + rng.randrange(12)
            while stored(folder / "out") < until and process.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.5))
            kept = stored(folder / "out")
            process.kill()
            process.communicate()
            killed += 1
            assert stored(folder / "out") >= kept >= before  # nothing that was stored is lost
            before = stored(folder / "out")
        said = finished(folder)
        assert not before or f"{before} done, continuing" in said  # only what was in hand is done again
        assert outcomes(folder / "out") == expected


def test_killed_at_random_moments_it_finishes_the_same(tmp_path: Path) -> None:
    survive(tmp_path, kills=1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_killed_at_200_random_moments_it_finishes_the_same(tmp_path: Path, seed: int) -> None:
    survive(tmp_path, kills=50, seed=seed)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_interrupted_it_stops_within_two_seconds_with_everything_saved(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write_plan(tmp_path / "plan.toml", **{**THIRTY, "repeats": 20})
    process = start(tmp_path)
    while stored(tmp_path / "out") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    kept = stored(tmp_path / "out")
    process.send_signal(number)
    try:
        said, _ = process.communicate(timeout=30)  # a bounded wait; the promise is two seconds on a free machine
    finally:
        process.kill()
    assert process.returncode == code
    assert ("the same command goes on" in said) == (number == signal.SIGINT)
    assert stored(tmp_path / "out") >= kept
    assert (tmp_path / "out" / "lock").read_text() == ""
