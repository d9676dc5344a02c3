"""The accuracy columns of 003's Tables 11 to 13: defenses act on every step, the summary is what was written."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.registry import papers_folder
from fedspill.reproduce import published


@pytest.fixture
def utility(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(papers_folder() / "003"))
    monkeypatch.delitem(sys.modules, "utility", raising=False)
    import utility as module  # type: ignore[import-not-found]

    return module  # type: ignore[no-any-return]


def stepped() -> nn.Linear:
    network = nn.Linear(40, 30)
    network(torch.ones(8, 40)).square().sum().backward()
    return network


def norm(network: nn.Module) -> float:
    return float(torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm())


def test_a_steps_gradient_is_clipped_noised_and_compressed(utility: ModuleType) -> None:
    rng = torch.Generator().manual_seed(0)
    network = stepped()
    utility.defend(network, (ClipNoise(clip=0.5, sigma=0.0, per="step"),), rng)
    assert norm(network) == pytest.approx(0.5)
    utility.defend(network, (ClipNoise(clip=None, sigma=0.3, per="step"),), rng)
    assert network.weight.grad is not None
    assert float(network.weight.grad.std()) == pytest.approx(0.3, rel=0.1)
    utility.defend(network, (Compression(drop=0.9),), rng)
    assert int((network.weight.grad == 0).sum()) == 1080


def test_every_printed_row_has_a_setting_and_the_other_way_round(utility: ModuleType) -> None:
    from fedspill.registry import paper_tables

    tables, printed = paper_tables("003"), published("003", "utility")
    for number, kind in utility.TABLES.items():
        settings = {name for name in getattr(tables, kind)().settings() if "no noise" not in name}
        assert settings == printed[number].keys()


def test_the_summary_holds_losses_against_the_same_seed(utility: ModuleType, tmp_path: Path) -> None:
    rows = [
        {"table": table, "setting": name, "seed": seed, "right": right, "tested": 100, "seconds_per_epoch": 2.0}
        for table, name, seed, right in (
            ("13", "0", 1, 80),
            ("13", "0", 2, 70),
            ("12", "0.01", 1, 50),
            ("12", "0.01", 2, 44),
        )
    ]
    (tmp_path / utility.FILE).write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    text = "\n".join(utility.summary(tmp_path))
    assert "| 12 | 0.01 | 47.0 [8.9, 85.1] | -28.0 [-53.4, -2.6] | -38.0 | 2 | 2.0 |" in text
