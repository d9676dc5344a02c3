"""Ten generated networks times all passive attacks: a score, a reading or a sentence, never a crash.

The long version is benchmarks/fuzz_architectures.py.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz_architectures.py"))
# Between them they have tables, images, tokens, gradients, updates, attention, recurrence, shared and frozen weights,
# dropout, residual connections, and forwards that branch on values.
SEEDS = (2, 3, 5, 12, 17, 22, 23, 30, 39, 48)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_attack_crashes_on_a_generated_network(seed: int) -> None:
    found, crashes = FUZZ["tried"](seed, 60.0, rounds=1, adversaries=("curious-server",))
    assert not crashes
    assert sum(found.values()) > 0


def test_a_crash_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("of the attack")

    monkeypatch.setattr("fedspill.leaks.labels.llg.LLG.run", broken)
    _, crashes = FUZZ["tried"](1, 60.0, rounds=1, adversaries=("curious-server",))
    assert any("llg failed with IndexError" in crash for crash in crashes)
