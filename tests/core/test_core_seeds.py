"""Seeds: one stream per purpose."""

import itertools

import pytest
import torch

from fedspill.errors import UsageError
from fedspill.seeds import generator, seed_of


def test_the_same_words_give_the_same_stream_whatever_ran_before() -> None:
    first = torch.rand(4, generator=generator(7, "client", 3, 1))
    torch.rand(100)
    assert torch.equal(first, torch.rand(4, generator=generator(7, "client", 3, 1)))


def test_every_seed_word_round_and_client_has_a_stream_of_its_own() -> None:
    purposes = itertools.product(range(3), ("client", "selection"), range(40), range(40))
    seeds = [seed_of(seed, word, number, index) for seed, word, number, index in purposes]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_seeds_are_the_same_on_every_machine_and_in_every_release() -> None:
    """Frozen: a change here changes every published result."""
    assert seed_of(7, "local training", 0, 0) == 4310278298784299372
    assert seed_of(2024, "network", 3) == 5082800860291505621


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="-1"):
        seed_of(-1, "client")
