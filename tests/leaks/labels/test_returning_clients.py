"""Clients that come back hold what they held: which reading is believed, and what rounds say together."""

import torch

from fedspill.leaks.labels.counts.readings import ReadCounts
from fedspill.leaks.labels.counts.returning_clients import chance, read_together, trust, weight_of_first
from fedspill.observe.drawn_clients import counts_of_shares

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


def test_chance_is_what_differs_from_round_to_round_and_not_what_all_or_one_client_do() -> None:
    rng = torch.Generator().manual_seed(4)
    clients, rounds = torch.arange(60).repeat(ROUNDS), torch.arange(ROUNDS).repeat_interleave(60)
    noise = 0.1 * torch.randn(60 * ROUNDS, generator=rng, dtype=torch.float64)
    own, common = 3.0 * torch.randn(60, generator=rng).double(), 5.0 * torch.randn(ROUNDS, generator=rng).double()
    found = chance(noise + own[clients] + common[rounds], rounds.tolist(), clients.tolist())
    assert abs(found - 0.1) < 0.015
    assert chance(noise, rounds.tolist(), range(len(noise))) == 0.0  # nobody comes back


SAMPLES = 200


def read_as(shares: torch.Tensor, wrong: float) -> ReadCounts:
    """Rounds whose readings state to have so many labels wrong."""
    counts, sure = counts_of_shares(shares, SAMPLES), torch.full(shares.shape, 0.5, dtype=torch.float64)
    stated = torch.full((len(shares),), 1 - wrong, dtype=torch.float64)
    return ReadCounts(
        counts, sure, stated, (counts - 20).clamp_min(0), (counts + 20).clamp_max(SAMPLES), ("ebi",) * len(shares)
    )


def noisy(amount: float) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    off = amount * torch.randn(CLIENTS * ROUNDS, CLASSES, generator=rng, dtype=torch.float64)
    kept = (held().repeat(ROUNDS, 1) + off).clamp_min(0)
    return kept / kept.sum(1, keepdim=True)


def right(read: ReadCounts) -> float:
    true = counts_of_shares(held().repeat(ROUNDS, 1), SAMPLES)
    return float(torch.minimum(read.counts, true).sum() / true.sum())


def test_what_rounds_say_differently_of_the_same_samples_averages_out() -> None:
    clients = list(range(CLIENTS)) * ROUNDS
    each = read_as(noisy(0.08), 0.2)
    together = read_together(each, torch.full((len(clients),), SAMPLES), clients)
    assert right(together) > right(each) + 0.03
    assert bool((together.counts.sum(1) == SAMPLES).all())
    assert bool((together.counts[:CLIENTS] == together.counts[-CLIENTS:]).all())  # one answer for a client
    assert bool((together.expected >= each.expected).all())
    assert bool((together.low <= together.counts).all() and (together.counts <= together.high).all())


def test_rounds_that_contradict_each_other_by_more_than_they_state_are_left_alone() -> None:
    other = held().flip(1)  # the second half of the rounds holds other samples
    shares = torch.cat([held().repeat(2, 1), other.repeat(2, 1)])
    each = read_as(shares, 0.01)
    clients = list(range(CLIENTS)) * ROUNDS
    assert torch.equal(read_together(each, torch.full((len(clients),), SAMPLES), clients).counts, each.counts)


def test_a_round_that_is_sure_counts_for_more() -> None:
    exact, wild = counts_of_shares(held()[:1], SAMPLES), counts_of_shares(held()[:1].flip(1), SAMPLES)
    counts = torch.cat([exact, wild])
    sure = torch.full(counts.shape, 0.5, dtype=torch.float64)
    each = ReadCounts(counts, sure, torch.tensor([0.99, 0.3], dtype=torch.float64), counts, counts, ("a", "b"))
    found = read_together(each, torch.tensor([SAMPLES, SAMPLES]), ["one", "one"]).counts[0]
    assert float((found - exact[0]).abs().sum()) < 0.1 * float((found - wild[0]).abs().sum())
