"""Clients that are alike help each other; clients that are not, and those that say nothing, are left alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedspill.observe.clients_together import HYPOTHESES, read_together
from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.share_fits import positive

CLASSES, NOISE = 8, 0.04


def drawn(number: int, concentration: float, rng: torch.Generator, classes: int = CLASSES) -> Tensor:
    """(number, classes) shares of clients that are the more alike the larger the concentration is."""
    return positive(torch._standard_gamma(torch.full((number, classes), concentration).double(), generator=rng))


def read(truth: Tensor, rng: torch.Generator, noise: float = NOISE, samples: int = 1000) -> list[RehearsedShares]:
    """What rehearsal makes of clients with these shares: the truth and an error, as make-believe clients have it."""
    results, classes = [], truth.shape[1]
    for own in truth:
        known = drawn(64, 2.0, rng, classes)
        errors = noise * torch.randn(64, classes, generator=rng, dtype=torch.float64)
        error = noise * torch.randn(classes, generator=rng, dtype=torch.float64)
        counts = samples * known
        results.append(RehearsedShares(positive(own + error), counts, errors - errors.mean(1, True), 1.0, True))
    return results


def distance(results: list[RehearsedShares], truth: Tensor) -> float:
    return float((torch.stack([one.shares for one in results]) - truth).abs().sum(1).mean())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clients", [3, 12])
def test_clients_that_are_alike_are_read_better_together(seed: int, clients: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    truth = drawn(clients, 500.0, rng)
    apart = read(truth, rng)
    together = read_together(apart)
    assert distance(together, truth) < 0.75 * distance(apart, truth)
    assert all(after.error < before.error for after, before in zip(together, apart, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_an_uneven_mix_that_all_clients_share_is_found(seed: int) -> None:
    """The population is not taken to be even because clients are alike."""
    rng = torch.Generator().manual_seed(seed)
    truth = positive(torch.tensor([[0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05]]).double()).repeat(12, 1)
    apart = read(truth, rng)
    assert distance(read_together(apart), truth) < 0.75 * distance(apart, truth)


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_differ_are_left_as_they_were_read(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    truth = drawn(12, 0.5, rng)
    apart = read(truth, rng)
    together = read_together(apart)
    for before, after in zip(apart, together, strict=True):
        assert torch.allclose(before.shares, after.shares, atol=1e-3)
        assert after.error > 0.95 * before.error


@pytest.mark.parametrize("seed", range(2))
def test_clients_of_many_classes_are_not_alike_because_no_class_is_large(seed: int) -> None:
    """Of a hundred classes the largest is small whoever the client is."""
    rng = torch.Generator().manual_seed(seed)
    truth = drawn(8, 0.5, rng, 100)
    apart = read(truth, rng, noise=0.008)
    together = read_together(apart)
    assert distance(together, truth) < 1.02 * distance(apart, truth)
    assert all(after.error > 0.95 * before.error for after, before in zip(together, apart, strict=True))


def test_clients_with_fewer_samples_than_classes_are_left_as_they_were_read() -> None:
    """Chance alone makes them unlike, whatever they were drawn from."""
    rng = torch.Generator().manual_seed(0)
    apart = read(drawn(8, 500.0, rng, 100), rng, noise=0.008, samples=100)
    assert all(after is before for after, before in zip(read_together(apart), apart, strict=True))


def test_one_client_has_nobody_to_be_like() -> None:
    rng = torch.Generator().manual_seed(0)
    (alone,) = read(drawn(1, 500.0, rng), rng)
    assert read_together([alone]) == [alone]
    assert read_together([]) == []


def test_rounds_of_a_client_that_were_read_as_one_count_once() -> None:
    """Else a client would bear itself out, and look more like the others the more rounds it sends."""
    rng = torch.Generator().manual_seed(0)
    first, second = read(drawn(2, 500.0, rng), rng)
    once = read_together([first, second])
    often = read_together([first, *[replace(first)] * 9, second])
    assert torch.equal(once[0].shares, often[0].shares)
    assert torch.equal(once[1].shares, often[-1].shares)
    assert all(torch.equal(one.shares, often[0].shares) for one in often[:10])
    assert read_together([first, replace(first)])[0] == first, "nobody else is there"


def test_who_sent_nothing_like_the_rehearsals_neither_helps_nor_is_helped() -> None:
    rng = torch.Generator().manual_seed(0)
    near = read(drawn(5, 500.0, rng), rng)
    far = replace(read(drawn(1, 0.1, rng), rng)[0], near=False)
    told = read_together([*near, far])
    assert told[-1] is far
    for with_it, without in zip(told, read_together(near), strict=False):
        assert torch.equal(with_it.shares, without.shares)


def test_errors_that_all_share_stay_stated() -> None:
    rng = torch.Generator().manual_seed(0)
    apart = read(drawn(40, 5000.0, rng), rng)
    for before, after in zip(apart, read_together(apart), strict=True):
        shrunk = after.errors.square().sum(0) / before.errors.square().sum(0)
        assert float(shrunk.min()) >= HYPOTHESES.unseen * (1 - 1e-9)
