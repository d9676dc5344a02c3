"""What nobody can read off a noised update (003, Table 12): the energy of a label's push, and the best guess."""

from types import ModuleType

import pytest
import torch
from torch import nn

from fedspill.registry import paper_tables
from fedspill.reproduce import Run

LLBG = 75.9  # measured at noise 0.1 on VGG19
ENERGY = 2.25  # of VGG19, mean of 32 images on four networks


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return paper_tables("003")


def told(tables: ModuleType, sigma: float, energy: float) -> float:
    guess, real = tables._told_the_rest(sigma, energy, 100, Run(seed=5))
    assert torch.equal(guess.sum(1), real.sum(1))
    return 100 * float(tables.score(guess, real).value)


def test_the_energy_of_a_linear_network_is_that_of_its_input_and_its_bias(tables: ModuleType) -> None:
    x = torch.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 0.0]])
    assert tables.push_energy(nn.Linear(3, 4), x) == pytest.approx(10.0)


def test_without_noise_everything_is_read_and_with_much_of_it_nothing_but_chance(tables: ModuleType) -> None:
    assert told(tables, 1e-3, 1.0) > 99.9
    chance = 75 + 25 * float(1 - (1 - 0.01) ** 32)  # a guess of 32 classes hits those that are there
    assert told(tables, 1e3, 1.0) == pytest.approx(chance, abs=0.5)


@pytest.mark.slow
def test_more_energy_is_more_to_read(tables: ModuleType) -> None:
    found = [told(tables, 0.1, energy) for energy in (0.5, 2.0, 8.0, 32.0)]
    assert found == sorted(found)


@pytest.mark.slow
def test_ten_points_above_llbg_are_out_of_reach_at_noise_a_tenth(tables: ModuleType) -> None:
    assert max(told(tables, 0.1, factor * ENERGY) for factor in tables.BOUNDS.values()) < LLBG + 10
