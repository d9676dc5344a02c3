"""The tables of paper 003: all there, all with the printed figures, and honest where they cannot be run."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspill.errors import NotApplicable
from fedspill.reproduce import Run, published, table, tables

NAMES = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "11", "12", "13", "14")


def test_every_table_is_registered() -> None:
    assert {f"003/{name}" for name in NAMES} <= {entry.name for entry in tables()}


@pytest.mark.parametrize("name", NAMES)
def test_without_data_every_printed_figure_is_shown_and_nothing_is_claimed(name: str, tmp_path: Path) -> None:
    rows = list(table(f"003/{name}").rows(Run(data_dir=tmp_path)))
    assert rows
    assert {row.verdict for row in rows} == {"not runnable"}
    assert all(row.measured is None and row.note for row in rows)
    printed = published("003", name)
    wanted = sorted(figure for cell in printed.values() if isinstance(cell, dict) for figure in cell.values())
    assert sorted(row.published for row in rows if row.published is not None) == wanted


def test_the_activations_leak_as_printed(data_dir: Path) -> None:
    """Table 8 on a few batches of the real data: LLBG within three points of the printed figure, ours above 99.5."""
    found = {}
    for row in table("003/8").rows(Run(data_dir=data_dir)):
        found[row.cell["activation"], row.cell["attack"]] = row
        if row.cell["activation"] == "leaky-relu":
            break
    assert found["relu", "labels"].measured is not None
    assert found["relu", "labels"].measured > 99.5
    assert abs((found["relu", "llbg"].measured or 0) - 99.56) < 3


def test_a_batch_on_which_the_network_diverged_is_left_out(data_dir: Path) -> None:
    table("003/1")
    module: Any = sys.modules["fedspill_papers_003"]
    run = Run(data_dir=data_dir)
    dataset, _ = module.load_images(module.Cifar100(normalize=True), run)
    setup = module._unbalanced(dataset, module._fresh(module.Mlp(widths=(16,)), dataset, run), 128, run)

    def first_breaks_down(index: int) -> Any:
        network = setup.network(index)
        if index == 0:
            torch.nn.init.constant_(network.head.weight, torch.nan)
        return network

    broken = dataclasses.replace(setup, network=first_breaks_down)
    counts, real = module.attacked(broken, 2, run)
    assert len(real) == 1
    assert all(len(found) == 1 for found in counts.values())
    with pytest.raises(NotApplicable, match="NaN"):
        module.attacked(broken, 1, run)


@pytest.mark.slow
def test_an_attacker_who_knows_the_noise_reads_what_llbg_cannot(data_dir: Path) -> None:
    """Table 12's defense on the MLP: ten points above LLBG at noise 0.1, on a few batches of the real data."""
    table("003/12")
    module: Any = sys.modules["fedspill_papers_003"]
    run = Run(data_dir=data_dir)
    dataset, _ = module.load_images(module.Cifar100(normalize=True), run)
    setup = module._unbalanced(dataset, module._fresh(module.MODELS["mlp"], dataset, run), 128, run)
    setup = dataclasses.replace(setup, defenses=module._each_step(1.0, 0.1))
    found = {result.attack: result.score.value for result in module.attack_batches(setup, 3, run)}
    assert found["labels"] > found["llbg"] + 0.1
    assert found["labels"] > found[module.UNAWARE] + 0.1
