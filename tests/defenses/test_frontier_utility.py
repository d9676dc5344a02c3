"""The cost of each defense: every one can be trained with, and losses are held against the same seed."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedspill.dataset import Dataset, Examples
from fedspill.registry import entries, load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def utility(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "frontier_utility", raising=False)
    import frontier_utility as module  # type: ignore[import-not-found]

    return module  # type: ignore[no-any-return]


def blobs(number: int) -> Examples:
    y = torch.arange(number) % 3
    x = torch.randn(number, 1, 4, 4, generator=torch.Generator().manual_seed(number))
    return Examples(x + y[:, None, None, None], y)


def line(defense: str, seed: int, accuracy: float, epsilon: float | None = None) -> dict[str, Any]:
    more = {"before": accuracy - 0.5, "cpu_per_round": 0.2 if defense == "none" else 0.3, "epsilon": epsilon}
    return {"defense": defense, "seed": seed, "accuracy": accuracy, "rounds": 60, **more}


def test_a_federation_is_trained_with_every_defense(utility: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "CLIENTS", 3)
    monkeypatch.setattr(utility, "SAMPLES", 40)
    monkeypatch.setattr(utility, "PUBLIC", 5)
    dataset = Dataset("blobs", ("a", "b", "c"), blobs(300), blobs(60))
    found = {name: utility.trained(dataset, d, 1, 4) for name, d in utility.DEFENSES.items()}
    assert all(0 <= one["accuracy"] <= 100 for one in found.values())
    assert found["none"]["accuracy"] > 60
    assert found["secure-aggregation"]["accuracy"] == pytest.approx(found["none"]["accuracy"], abs=2)
    assert found["none"]["epsilon"] is None
    assert found["dp-sgd, clip 1, multiplier 1"]["epsilon"] > 0


def test_every_defense_on_the_wire_or_in_training_is_there(utility: ModuleType) -> None:
    measured = {defense.name for defenses in utility.DEFENSES.values() for defense in defenses}
    watching = {
        "badacc",
        "badauc",
        "guard",
        "gradient-gate",
        "wadm",
        "fake-gradients",
    }  # against others than curious ones
    of_parties = {entry.name for entry in entries("defenses") if load("defenses", entry.name).of_private_towers}
    assert {entry.name for entry in entries("defenses")} - watching - of_parties <= measured


def test_losses_are_paired_by_seed(utility: ModuleType) -> None:
    every = [line("none", 1, 90.0), line("none", 2, 80.0), line("dropout, 0.5", 1, 89.0), line("dropout, 0.5", 2, 78.0)]
    rows = "\n".join(utility.summary([*every, line("dropout, 0.5", 3, 10.0)]))
    assert "| dropout, 0.5 | 83.5 [13.6, 153.4] | -1.5 [-7.9, 4.9] | +0.5 |  | 1.5 | 2 |" in rows
    assert "| none | 85.0 [21.5, 148.5] |  | +0.5 |  | 0.20 s | 2 |" in rows
