"""How many make-believe clients an update is worth, by what training one costs."""

import pytest
import torch
from torch import nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.observe.make_believe import Workshop
from fedspill.observe.rehearsal_plan import ENOUGH_FLOPS, LEAST_NEAR, affordable, operations_of_training
from fedspill.observe.rehearsed_shares import RehearsalSizes
from fedspill.training import LocalTraining

SAMPLES = 10_000


def shop(width: int) -> Workshop:
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
    own = Examples(torch.zeros(4, 8), torch.arange(4))
    return Workshop(model, LocalTraining(lr=0.1, batch_size=32), own)


def cost(width: int) -> int:
    return operations_of_training(shop(width).model, torch.zeros(1, 8), SAMPLES, 32)


@pytest.mark.parametrize(("width", "near"), [(16, RehearsalSizes().near), (4096, LEAST_NEAR)])
def test_cheap_trainings_are_repeated_as_often_as_wanted_and_dear_ones_as_seldom_as_tells_something(
    width: int, near: int
) -> None:
    assert affordable(shop(width), SAMPLES, flops=1e15).near == near


def test_between_the_two_as_many_as_are_paid_for() -> None:
    width = 600
    near = int(ENOUGH_FLOPS / cost(width))
    assert LEAST_NEAR < near < RehearsalSizes().near
    assert affordable(shop(width), SAMPLES, flops=1e15).near == near


def test_what_the_fewest_rehearsals_would_overspend_is_not_rehearsed() -> None:
    with pytest.raises(NotApplicable, match="too large"):
        affordable(shop(600), SAMPLES, flops=LEAST_NEAR * cost(600) - 1)
