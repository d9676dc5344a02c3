"""Two neighbours: bounds on epsilon hold for Gaussian and Laplace noise, and refute what is too small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedspill.dp_audit import DpResult, audit_neighbours
from fedspill.dp_audit.gaussian_privacy import mu_of
from fedspill.dp_audit.neighbours import counted_bound, opposite
from fedspill.seeds import generator


def audited(noise: str, size: float, claimed: float) -> DpResult:
    """One number that moves by 2."""
    rng = generator(5, noise)
    law = np.random.default_rng(5)

    def send(update: Tensor) -> Tensor:
        if noise == "laplace":
            return update + torch.from_numpy(law.laplace(scale=size, size=1))
        return update + size * torch.randn(1, generator=rng)

    one, other = opposite(1, 1.0)
    delta = 0.0 if noise == "laplace" else 1e-5
    return audit_neighbours(noise, send, one, other, epsilon=claimed, delta=delta, calls=1000)


@pytest.mark.parametrize(("noise", "size"), [("normal", 2 / mu_of(2.0, 1e-5)), ("laplace", 1.0)])
def test_noise_that_is_worth_its_claim_is_not_accused_and_less_of_it_is(noise: str, size: float) -> None:
    """Either noise is worth epsilon 2."""
    sound = audited(noise, size, 2.0)
    assert not sound.violated
    assert 3.5 < sound.largest < 5, "what 500 messages can show"
    assert audited(noise, size / 6, 2.0).violated


def test_a_normal_law_is_shown_and_accuses_nobody() -> None:
    """Laplace noise of epsilon 2 would look like 6."""
    normal, counted = audited("laplace", 1.0, 2.0).tests
    assert normal.lower > 2
    assert not normal.violates(2.0)
    assert 0.3 < counted.lower < 2


def test_the_counted_bound_holds_as_often_as_it_says() -> None:
    """Laplace noise of epsilon 1: at 95 % more than 22 failures in 200 would come once in 2,000 times."""
    rng, failed = np.random.default_rng(0), 0
    for _ in range(200):
        one, other = rng.laplace(1, 1, 400), rng.laplace(0, 1, 400)
        failed += counted_bound(one, other, 0.0, 0.95) > 1
    assert failed <= 22
