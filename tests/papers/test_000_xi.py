"""Table XI of 000: its epsilons are those of one local pass of 60 batches, by Opacus's PRV accountant."""

import pytest

from fedspill.registry import paper_tables


def test_the_readings_have_sixty_batches() -> None:
    readings = paper_tables("000").READINGS
    steps = {name: reading.training.schedule(reading.samples).steps for name, reading in readings.items()}
    assert {count for name, count in steps.items() if name.startswith("60")} == {60}


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")  # of a first bound that PRV starts from
@pytest.mark.parametrize(("multiplier", "printed"), [(1.0, 1.03), (4.0, 0.12), (16.0, 0.03)])
def test_the_printed_epsilons_are_those_of_one_pass(multiplier: float, printed: float) -> None:
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed: fedspill[dp]")
    accountant = accountants.PRVAccountant()
    accountant.history = [(multiplier, 1 / 60, 60)]
    assert accountant.get_epsilon(1e-5) == pytest.approx(printed, abs=0.006)
