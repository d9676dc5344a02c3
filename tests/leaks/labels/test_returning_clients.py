"""Clients that come back decide which of two readings is believed: the one that says the same of each again."""

import torch

from fedspill.leaks.labels.counts.returning_clients import trust, weight_of_first

CLIENTS, ROUNDS, CLASSES = 6, 4, 5


def held() -> torch.Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.softmax(2 * torch.randn(CLIENTS, CLASSES, generator=rng, dtype=torch.float64), 1)


def test_a_reading_of_the_clients_counts_more_than_one_of_the_rounds() -> None:
    rng = torch.Generator().manual_seed(2)
    of_clients = held().repeat(ROUNDS, 1) + 0.02 * torch.randn(CLIENTS * ROUNDS, CLASSES, generator=rng)
    of_rounds = torch.rand(ROUNDS, 1, CLASSES, generator=rng).expand(-1, CLIENTS, -1).reshape(-1, CLASSES).double()
    senders = [f"client:{number}" for number in range(CLIENTS)] * ROUNDS
    assert weight_of_first(of_clients, of_rounds, senders) > 0.95
    assert weight_of_first(of_rounds, of_clients, senders) < 0.05
    assert weight_of_first(of_clients, of_clients, senders) == 0.5


def test_a_reading_that_says_the_same_of_everybody_is_not_believed() -> None:
    same = torch.full((CLIENTS * ROUNDS, CLASSES), 1 / CLASSES, dtype=torch.float64)
    senders = [f"client:{number}" for number in range(CLIENTS)] * ROUNDS
    assert trust(same, senders) == 0.0


def test_where_nobody_comes_back_both_count_alike() -> None:
    once = [f"client:{number}" for number in range(CLIENTS)]
    assert trust(held(), once) is None
    assert weight_of_first(held(), held().flip(0), once) == 0.5
