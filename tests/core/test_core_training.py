"""Schedule: samples cut into steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspill.errors import UsageError
from fedspill.training import Schedule


@given(st.integers(1, 500), st.integers(1, 600), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_the_steps_of_a_pass_hold_every_sample_once(samples: int, batch_size: int, epochs: int) -> None:
    schedule = Schedule(samples, batch_size, epochs)
    sizes = schedule.sizes()
    assert sum(sizes) == samples
    assert len(sizes) * epochs == schedule.steps
    assert all(size == batch_size for size in sizes[:-1])
    assert 1 <= sizes[-1] <= batch_size
    assert schedule.per_step == sizes[0]
    assert schedule.last == (sizes[-1] if sizes[-1] < batch_size else 0)


def test_by_hand() -> None:
    assert Schedule(128, 13).sizes() == [13] * 9 + [11]
    assert Schedule(12, 4, 3).steps == 9
    assert Schedule(3, 10).sizes() == [3]


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_less_than_one_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Schedule(*numbers)
