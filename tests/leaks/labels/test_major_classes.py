"""The split of the major classes of a drifting model: exact where the way is known, and it always adds up."""

import pytest
import torch
from torch import Tensor

from fedspill.leaks.labels.counts.major_classes import by_field, by_push, shared

CLASSES, SAMPLES, STEPS = 50, 120, 10


def drifted(amounts: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Bias sums, mean probabilities before and after, if logits follow the labels."""
    labels = amounts / SAMPLES
    logits = 0.05 * torch.randn(1, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start, bias = logits.softmax(1), torch.zeros(1, CLASSES, dtype=torch.float64)
    for _ in range(STEPS):
        likely = logits.softmax(1)
        bias = bias + likely - labels
        logits = logits - rate * (likely - labels)
    return bias, start, logits.softmax(1)


@pytest.fixture
def amounts() -> Tensor:
    counts = torch.full((1, CLASSES), 0.5, dtype=torch.float64)
    counts[0, 3], counts[0, 7] = 64, 32
    return counts


@pytest.mark.parametrize(("rate", "least"), [(0.3, 0.5), (1.0, 5.0)])
def test_a_way_that_follows_the_labels_is_found(amounts: Tensor, rate: float, least: float) -> None:
    bias, start, end = drifted(amounts, rate)
    major, left = amounts > 10, torch.tensor([[96.0]], dtype=torch.float64)
    slow = torch.tensor([float(STEPS)], dtype=torch.float64)
    found = by_push(bias, major, left), shared(bias, major, left, start, end, slow, SAMPLES, STEPS)
    miss = [float((one - amounts)[major].abs().sum()) for one in found]
    assert miss[1] < 0.1
    assert miss[0] > least  # what is proportional to the push is not right


@pytest.mark.parametrize("time", [9.9, 8.0, 4.0])
def test_amounts_are_those_of_the_major_classes_and_add_up(amounts: Tensor, time: float) -> None:
    bias, start, end = drifted(amounts, 2.0)
    major, left = amounts > 10, torch.tensor([[90.0]], dtype=torch.float64)
    found = shared(bias, major, left, start, end, torch.tensor([time], dtype=torch.float64), SAMPLES, STEPS)
    assert float(found.sum()) == pytest.approx(90.0)
    assert bool((found[~major] == 0).all())
    assert bool((found >= 0).all())


def test_a_model_that_settled_on_one_class_is_read_by_its_push(amounts: Tensor) -> None:
    bias, start, _ = drifted(amounts, 2.0)
    end = torch.full_like(start, 1e-4)
    end[0, 3] = 1 - 1e-4 * (CLASSES - 1)
    major, left = amounts > 10, torch.tensor([[96.0]], dtype=torch.float64)
    found = shared(bias, major, left, start, end, torch.tensor([5.0], dtype=torch.float64), SAMPLES, STEPS)
    assert torch.equal(found, by_push(bias, major, left))


def test_a_fast_drift_is_read_between_push_and_field(amounts: Tensor) -> None:
    bias, start, end = drifted(amounts, 1.0)
    major, left = amounts > 10, torch.tensor([[96.0]], dtype=torch.float64)
    found = shared(bias, major, left, start, end, torch.tensor([5.0], dtype=torch.float64), SAMPLES, STEPS)
    push = by_push(bias, major, left)
    field = by_field(bias, major, left, start, SAMPLES, STEPS, push)
    part = (found - push)[major] / (field - push)[major]
    assert bool(((part > 0) & (part <= 0.5)).all())  # half of the way where the two agree


def test_no_major_class_is_no_sample() -> None:
    bias, start, end = drifted(torch.full((1, CLASSES), SAMPLES / CLASSES, dtype=torch.float64), 0.3)
    none = torch.zeros(1, CLASSES, dtype=torch.bool)
    left = torch.zeros(1, 1, dtype=torch.float64)
    found = shared(bias, none, left, start, end, torch.tensor([9.9], dtype=torch.float64), SAMPLES, STEPS)
    assert bool((found == 0).all())
