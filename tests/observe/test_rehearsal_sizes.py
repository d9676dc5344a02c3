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


def test_dear_trainings_are_repeated_less_often() -> None:
    cheap, dear = (affordable(shop(width), SAMPLES, flops=1e15) for width in (16, 4096))
    assert RehearsalSizes().near * cost(16) < ENOUGH_FLOPS < LEAST_NEAR * cost(4096)
    assert (cheap.near, cheap.broad) == (RehearsalSizes().near, RehearsalSizes().broad)
    assert dear.near == LEAST_NEAR < cheap.near
    assert dear.least_broad <= dear.broad < cheap.broad


def test_what_the_fewest_rehearsals_would_overspend_is_not_rehearsed() -> None:
    with pytest.raises(NotApplicable, match="too large"):
        affordable(shop(600), SAMPLES, flops=LEAST_NEAR * cost(600) - 1)
