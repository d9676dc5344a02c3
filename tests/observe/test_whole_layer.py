"""Shares from the whole change of the last layer: its fit on made-up changes, and how much it counts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedspill.observe import rehearsed_shares, whole_layer
from fedspill.observe.drawn_clients import deal_apart
from fedspill.observe.share_fits import positive
from fedspill.observe.whole_layer import (
    MOST_NUMBERS,
    LayerShares,
    Surroundings,
    can_be_read,
    on_simplex,
    read_whole_layer,
)

CLASSES, NUMBERS, ROWS = 4, 30, 40


class World:
    """Rounds in which a change is linear in the shares, and noise is loud in three directions, of all clients alike."""

    def __init__(self, rounds: int, noise: float, loud: float = 20.0) -> None:
        self.rng = torch.Generator().manual_seed(3)
        self.slopes = [self.normal(CLASSES, NUMBERS) for _ in range(rounds)]
        self.loud = [
            torch.cat([loud * self.normal(3, NUMBERS), 0.1 * self.normal(NUMBERS, NUMBERS)]) for _ in range(rounds)
        ]
        self.noise = noise

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, dtype=torch.float64)

    def changes(self, shares: Tensor) -> list[Tensor]:
        return [
            shares @ slopes + self.noise * self.normal(len(shares), len(loud)) @ loud
            for slopes, loud in zip(self.slopes, self.loud, strict=True)
        ]

    def client(self, shares: Tensor, centre: Tensor) -> Surroundings:
        drawn = torch.rand(ROWS, CLASSES, generator=self.rng, dtype=torch.float64) * (centre > 0)
        known = positive(centre + 0.3 * drawn)
        asked = [change[0] for change in self.changes(shares[None])]
        folds = torch.arange(ROWS) % 2
        return Surroundings(known, folds, self.changes(known), asked, known > 1e-9, shares > 0)


def shares(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


REAL = [shares(0.1, 0.2, 0.3, 0.4), shares(0.5, 0.0, 0.5, 0.0), shares(0.7, 0.1, 0.1, 0.1)]


def test_noise_that_is_loud_in_some_directions_is_looked_past_and_shares_may_lie_far_from_the_centre(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(rounds=1, noise=0.05)
    clients = [world.client(one, shares(0.25, 0.25, 0.25, 0.25)) for one in REAL]
    found = read_whole_layer(clients)
    for real, told in zip(REAL, found, strict=True):
        assert float((told.shares - real).abs().sum()) < 0.1
        assert told.errors.shape == (ROWS, CLASSES)
        assert told.error < 0.1
        assert not bool(told.shares[real == 0].any())
    monkeypatch.setattr(whole_layer, "SHRINKS", (1.0,))  # as if noise were alike in all directions
    assert sum(one.error for one in read_whole_layer(clients)) > 3 * sum(one.error for one in found)


def test_rounds_say_more_together_than_each_alone() -> None:
    world = World(rounds=3, noise=0.4)
    clients = [world.client(one, shares(0.25, 0.25, 0.25, 0.25)) for one in REAL]
    together = read_whole_layer(clients)
    alone = [
        read_whole_layer([replace(one, played=one.played[k : k + 1], asked=one.asked[k : k + 1]) for one in clients])
        for k in range(3)
    ]
    errors = [sum(one.error for one in found) for found in alone]
    assert sum(one.error for one in together) < 0.8 * min(errors)


def test_a_class_that_no_client_around_holds_is_left_at_the_centre_and_breaks_nothing() -> None:
    world = World(rounds=2, noise=0.05)
    clients = [world.client(shares(0.2, 0.8, 0.0, 0.0), shares(0.5, 0.5, 0.0, 0.0)) for _ in range(2)]
    for one in read_whole_layer(clients):
        assert one.shares.tolist() == pytest.approx([0.2, 0.8, 0.0, 0.0], abs=0.05)


def test_stated_errors_are_as_large_as_real_ones() -> None:
    world = World(rounds=1, noise=0.6)
    centre = shares(0.25, 0.25, 0.25, 0.25)
    clients = [world.client(centre, centre) for _ in range(30)]
    found = read_whole_layer(clients)
    real = sum(float((one.shares - centre).abs().sum()) for one in found) / len(found)
    stated = sum(one.error for one in found) / len(found)
    assert 0.6 * real < stated < 1.6 * real


def test_few_make_believe_clients_or_huge_layers_are_not_read() -> None:
    client = World(rounds=1, noise=0.1).client(REAL[0], REAL[0])
    few = replace(client, known=client.known[:8], folds=client.folds[:8])
    huge = replace(client, asked=[torch.zeros(1).expand(MOST_NUMBERS // ROWS + 1)])
    assert can_be_read([client])
    assert not can_be_read([few])
    assert not can_be_read([huge])


def test_the_likeliest_shares_on_the_simplex() -> None:
    information = torch.diag(shares(1.0, 4.0, 9.0))
    wanted = torch.stack([shares(0.1, 0.2, 0.3), shares(0.6, 0.6, -0.5)])
    found = on_simplex(information, wanted, torch.tensor([[True] * 4, [True, True, True, False]]))
    assert found[0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # The sum must fall by .2 in all: by 4 parts of 5 where a share costs least.
    assert found[1].tolist() == pytest.approx([0.44, 0.56, 0.0, 0.0])


def test_clients_of_different_folds_hold_no_sample_together_unless_it_is_the_only_one() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, 2, 1, 0, 1, 1])
    counts = torch.tensor([[6, 6, 2], [6, 6, 2], [5, 5, 0], [5, 5, 0]])
    rows = [deal_apart(counts[k : k + 2], labels, torch.Generator().manual_seed(k)) for k in (0, 2)]
    even, odd = (set(torch.cat([part[side] for part in rows]).tolist()) for side in (0, 1))
    assert even & odd == {5}
    for part, wanted in zip(rows, (counts[:2], counts[2:]), strict=True):
        assert torch.equal(torch.stack([torch.bincount(labels[one], minlength=3) for one in part]), wanted)


def pattern(size: float, first: int) -> Tensor:
    """Errors (ROWS, CLASSES) between two neighbouring classes; of such that share no class no product is left."""
    errors = torch.zeros(ROWS, CLASSES, dtype=torch.float64)
    errors[:, first], errors[:, first + 1] = size, -size
    return errors


class Around:
    """Stands for make-believe clients around one; says around what and in which rounds it was asked for nearer ones."""

    known = torch.full((ROWS, CLASSES), 0.25, dtype=torch.float64)

    def __init__(self) -> None:
        self.again: list[tuple[Tensor, list[int]]] = []

    def surroundings(self, found: object) -> None:
        return None

    def nearer(self, centre: Tensor, errors: Tensor, rounds: list[int], rng: torch.Generator) -> "Around":
        self.again.append((centre, rounds))
        return self

    def fits(self) -> list[object]:
        return []

    def estimate(self, fits: list[object]) -> rehearsed_shares._Estimate:
        return rehearsed_shares._Estimate(shares(0.1, 0.1, 0.1, 0.7), pattern(0.1, 0))


@pytest.mark.parametrize("off", [0.05, 0.2])
def test_readings_and_whole_layer_count_by_their_errors_and_so_do_both_times(
    monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    layer = LayerShares(shares(0.7, 0.1, 0.1, 0.1), pattern(off, 2), shares(0.3, 0.1, 0.4, 0.2))
    monkeypatch.setattr(rehearsed_shares, "can_be_read", lambda spaces: True)
    monkeypatch.setattr(rehearsed_shares, "read_whole_layer", lambda spaces: [layer] * len(spaces))
    even, counts = shares(0.25, 0.25, 0.25, 0.25), torch.ones(ROWS, CLASSES).long()
    before = rehearsed_shares.RehearsedShares(even, counts, pattern(0.1, 0), 1.0, True)
    around = [Around(), Around()]
    plan = rehearsed_shares.RehearsalSizes()
    found = rehearsed_shares._by_layers(around, [before] * 2, torch.Generator(), plan)  # type: ignore[arg-type]
    weight = 0.1**2 / (0.1**2 + off**2)
    first = (1 - weight) * even + weight * layer.shares
    second = (1 - weight) * shares(0.1, 0.1, 0.1, 0.7) + weight * layer.shares
    for one, asked in zip(found, around, strict=True):
        torch.testing.assert_close(one.shares, (first + second) / 2)
        torch.testing.assert_close(one.errors, (1 - weight) * pattern(0.1, 0) + weight * layer.errors)
        ((centre, rounds),) = asked.again
        torch.testing.assert_close(centre, first)
        assert rounds == [1, 3]
