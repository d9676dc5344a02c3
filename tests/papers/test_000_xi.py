"""Table XI of 000: its epsilons are those of one local pass of 60 batches, by Opacus's PRV accountant."""

import pytest
import torch

from fedspill.dataset import Dataset, Examples
from fedspill.registry import paper_tables
from fedspill.reproduce import Run
from fedspill.training import LocalTraining


def bright_rows(number: int) -> Examples:
    """Ten classes of 12 x 12 images that any network can tell apart: one bright row each."""
    y = torch.arange(number) % 10
    x = 0.1 * torch.rand(number, 1, 12, 12, generator=torch.Generator().manual_seed(number))
    x[torch.arange(number), 0, y] += 1
    return Examples(x, y)


def test_the_readings_have_sixty_batches() -> None:
    readings = paper_tables("000").READINGS
    steps = {name: reading.training.schedule(reading.samples).steps for name, reading in readings.items()}
    assert {count for name, count in steps.items() if not name.startswith("19")} == {60}


def test_one_round_trains_on_every_share_and_says_what_was_spent() -> None:
    tables = paper_tables("000")
    dataset = Dataset("mnist", tuple("0123456789"), bright_rows(600), bright_rows(200))
    reading = tables.Reading(LocalTraining(lr=0.3, batch_size=20), 600, 1)
    run = Run(seed=1)
    plain, nothing = tables.one_round(dataset, run, "baseline", reading)
    noised, spent = tables.one_round(dataset, run, "epsilon 5", reading)
    assert plain > 0.5
    assert noised < plain
    assert nothing == ""
    assert "after 1 rounds" in spent


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")  # of a first bound that PRV starts from
@pytest.mark.parametrize(("multiplier", "printed"), [(1.0, 1.03), (4.0, 0.12), (16.0, 0.03)])
def test_the_printed_epsilons_are_those_of_one_pass(multiplier: float, printed: float) -> None:
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed: fedspill[dp]")
    accountant = accountants.PRVAccountant()
    accountant.history = [(multiplier, 1 / 60, 60)]
    assert accountant.get_epsilon(1e-5) == pytest.approx(printed, abs=0.006)
