"""Dirichlet shares: complete, of the right law, never below the minimum."""

import math

import numpy as np
import pytest
import torch

from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partitions.dirichlet import Dirichlet, dirichlet_counts


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1e6])
def test_everything_is_used(alpha: float, make_examples, rng) -> None:
    per_class = [200, 0, 31, 1000, 1]
    shares = Dirichlet(alpha).split(make_examples(per_class), 3, rng)
    assert sorted(torch.cat(shares).tolist()) == list(range(sum(per_class)))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_moments(alpha: float, make_examples, rng) -> None:
    """Mean 1/N and E[sum of squares] (alpha + 1) / (N alpha + 1), over 1000 independent classes.

    Seven tests at 5 standard errors: a correct sampler fails one of them with probability below 1e-5.
    """
    clients, classes, size = 6, 1000, 500
    examples = make_examples([size] * classes)
    shares = Dirichlet(alpha).split(examples, clients, rng)
    fractions = torch.stack([torch.bincount(examples.y[share], minlength=classes) for share in shares]).double() / size
    statistics = {f"mean of client {c}": (fractions[c], 1 / clients) for c in range(clients)}
    statistics["squares"] = (fractions.square().sum(0), (alpha + 1) / (clients * alpha + 1))
    for name, (values, expected) in statistics.items():
        error = float(values.std()) / math.sqrt(classes)
        assert abs(float(values.mean()) - expected) < 5 * error + 1e-4, name  # 1e-4: rounding to 1/500


def test_skew_grows_as_alpha_falls(make_examples, rng) -> None:
    examples = make_examples([1000] * 10)
    even, skewed = (Dirichlet(alpha).split(examples, 10, rng) for alpha in (1e5, 0.05))
    assert max(len(share) for share in even) < 1.1 * min(len(share) for share in even)
    assert max(len(share) for share in skewed) > 3 * min(len(share) for share in skewed)


def test_min_examples(make_examples) -> None:
    """At alpha 0.1 four clients rarely all hold 60 of 400 by themselves: for some seed shares must be drawn anew."""
    examples, smallest = make_examples([40] * 10), {}
    for least in (1, 60):
        draws = [Dirichlet(0.1, least).split(examples, 4, torch.Generator().manual_seed(seed)) for seed in range(20)]
        smallest[least] = min(len(share) for shares in draws for share in shares)
    assert smallest[1] < 60 <= smallest[60]


def test_counts_cover_each_class_under_rounding() -> None:
    available = torch.tensor([0, 1, 2, 7, 10_000_019])
    counts = dirichlet_counts(available, 50, 0.01, np.random.default_rng(0))
    assert counts.shape == (50, 5)
    assert counts.min() >= 0
    assert torch.equal(counts.sum(0), available)


def test_refused_when_impossible(make_examples, rng) -> None:
    with pytest.raises(
        NotEnoughExamples, match="wanted at least 30 for each of 4 clients, but there are 100 available"
    ):
        Dirichlet(1.0, 30).split(make_examples([50, 50]), 4, rng)


def test_refused_when_hopeless(make_examples, rng) -> None:
    with pytest.raises(NotEnoughExamples, match=r"alpha 0\.001 gave that in none of 1000 draws"):
        Dirichlet(0.001, 25).split(make_examples([50, 50]), 4, rng)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_bad_alpha(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha must be positive and finite"):
        Dirichlet(alpha)
