"""Whole counts from a bias gradient whose mean probability is known: exact where the gradient determines them."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from fedspill.leaks.labels.counts.posterior import best_tails
from fedspill.leaks.labels.counts.whole_counts import Steps, decoded
from fedspill.training import Schedule


def decode_counts(bias: Tensor, probability: Tensor, schedule: Schedule) -> Tensor:
    """Counts (batches, classes); bias (batches, classes) is summed over the steps of one pass."""
    steps = Steps.of(schedule)
    return best_tails(decoded(steps.unit * (steps.number * probability - bias), steps))


def bias_of(steps: list[list[int]], probability: Tensor) -> Tensor:
    """beta = sum over steps of (probability - share of the labels), for one batch: (classes,)."""
    classes = len(probability)
    total = torch.zeros(classes, dtype=torch.float64)
    for labels in steps:
        total += probability - torch.bincount(torch.tensor(labels), minlength=classes).double() / len(labels)
    return total


def cut(labels: list[int], schedule: Schedule) -> list[list[int]]:
    stream = iter(labels)
    return [list(itertools.islice(stream, size)) for size in schedule.sizes()]


def drawn(rng: random.Random, classes: int, samples: int, skew: bool) -> list[int]:
    """Labels: half of one class and a quarter of another, or even."""
    labels = [rng.randrange(classes) for _ in range(samples)]
    if skew:
        labels[: samples // 2] = [rng.randrange(classes)] * (samples // 2)
        labels[samples // 2 : 3 * samples // 4] = [rng.randrange(classes)] * (3 * samples // 4 - samples // 2)
    rng.shuffle(labels)
    return labels


def counted(labels: list[int], classes: int) -> list[int]:
    return [labels.count(label) for label in range(classes)]


@pytest.mark.parametrize("skew", [False, True], ids=["even", "skewed"])
@pytest.mark.parametrize(
    ("samples", "batch", "classes"), [(128, 128, 10), (128, 16, 100), (30, 10, 5), (5, 5, 2), (1, 1, 4), (64, 1, 10)]
)
def test_exact_without_a_short_step(samples: int, batch: int, classes: int, skew: bool) -> None:
    rng, schedule = random.Random(samples + classes), Schedule(samples, batch)
    probability = torch.rand(classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(0)
    batches = [drawn(rng, classes, samples, skew) for _ in range(20)]
    bias = torch.stack([bias_of(cut(labels, schedule), probability) for labels in batches])
    found = decode_counts(bias, probability.expand_as(bias), schedule)
    assert found.tolist() == [counted(labels, classes) for labels in batches]


@pytest.mark.parametrize("skew", [False, True], ids=["even", "skewed"])
@pytest.mark.parametrize(
    ("samples", "batch", "classes"),
    [
        (128, 13, 100),
        (128, 13, 10),
        (29, 10, 6),
        (55, 16, 20),
        (50, 9, 10),
    ],
)
def test_exact_with_a_short_step_that_the_gradient_tells_apart(
    samples: int, batch: int, classes: int, skew: bool
) -> None:
    """The sizes of the two kinds of step share no factor, so a short step's samples leave a fraction of their own."""
    rng, schedule = random.Random(samples + classes), Schedule(samples, batch)
    probability = torch.full((classes,), 1 / classes, dtype=torch.float64)
    batches = [drawn(rng, classes, samples, skew) for _ in range(20)]
    bias = torch.stack([bias_of(cut(labels, schedule), probability) for labels in batches])
    found = decode_counts(bias, probability.expand_as(bias), schedule)
    right = sum(a == counted(labels, classes) for a, labels in zip(found.tolist(), batches, strict=True))
    assert right >= 19, "one in twenty may fall to a short step of one class only"


def explanations(bias: Tensor, probability: float, schedule: Schedule, classes: int) -> set[tuple[int, ...]]:
    """By brute force: all counts for which some cut into steps gives this very gradient."""
    found = set()
    sizes = schedule.sizes()
    for counts in itertools.product(range(schedule.samples + 1), repeat=classes):
        if sum(counts) != schedule.samples:
            continue
        for last in itertools.product(*(range(count + 1) for count in counts)):
            if sum(last) != sizes[-1]:
                continue
            made = [
                len(sizes) * probability - (count - short) / sizes[0] - short / sizes[-1]
                for count, short in zip(counts, last, strict=True)
            ]
            if torch.allclose(torch.tensor(made, dtype=torch.float64), bias, atol=1e-9):
                found.add(counts)
    return found


@pytest.mark.parametrize(("samples", "batch", "classes"), [(7, 4, 3), (5, 3, 3), (8, 5, 2), (6, 4, 3), (9, 4, 2)])
def test_a_tiny_gradient_is_explained_by_what_is_decoded(samples: int, batch: int, classes: int) -> None:
    schedule, probability = Schedule(samples, batch), 1 / classes
    every = torch.full((classes,), probability, dtype=torch.float64)
    rng = random.Random(samples)
    batches = [[rng.randrange(classes) for _ in range(samples)] for _ in range(30)]
    biases = torch.stack([bias_of(cut(labels, schedule), every) for labels in batches])
    found = decode_counts(biases, every.expand_as(biases), schedule).tolist()
    for labels, bias, counts in zip(batches, biases, found, strict=True):
        possible = explanations(bias, probability, schedule, classes)
        assert tuple(counted(labels, classes)) in possible
        assert tuple(counts) in possible, f"{labels} in steps of {batch} give {bias.tolist()}"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 5.0])
@pytest.mark.parametrize(
    ("samples", "batch", "epochs"), [(128, 13, 1), (128, 13, 3), (40, 40, 1), (7, 20, 1), (1, 1, 1)]
)
def test_the_counts_add_up_whatever_the_noise(samples: int, batch: int, epochs: int, noise: float) -> None:
    bias = noise * torch.randn(30, 10, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    counts = decode_counts(bias, torch.full_like(bias, 0.1), Schedule(samples, batch, epochs))
    assert counts.dtype == torch.int64
    assert counts.sum(1).tolist() == [samples] * 30
    assert int(counts.min()) >= 0
