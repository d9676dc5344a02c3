"""Sharing out a data set: disjoint by index, complete, refused when a class is short."""

import pytest
import torch

from fedspill.dataset import Dataset
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partition import Partition
from fedspill.partitions.by_user import ByUser
from fedspill.partitions.compositions import Compositions
from fedspill.partitions.contiguous import Contiguous
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.partitions.iid import IID
from fedspill.partitions.shares import Shares, share_out


@pytest.fixture
def dataset(make_examples) -> Dataset:
    train, test = make_examples([120, 90, 60], users=9), make_examples([80, 80, 80], users=9)
    return Dataset("toy", ("a", "b", "c"), train, test)


def indices(values: torch.Tensor) -> set[int]:
    """The x of these examples is their index in their split, so this reads what is held, not what is claimed."""
    return set(values.flatten().int().tolist())


def test_adversary_and_clients_hold_different_examples(dataset, rng) -> None:
    shares = share_out(dataset, IID(), 4, auxiliary=7, shadow=30, rng=rng)
    auxiliary, shadow = indices(shares.auxiliary.x), indices(shares.shadow.x)
    clients = [indices(client.x) for client in shares.clients]
    assert [len(auxiliary), len(shadow), sum(map(len, clients))] == [21, 30, 270 - 51]
    assert auxiliary | shadow | set.union(*clients) == set(range(270))
    assert torch.bincount(shares.auxiliary.y).tolist() == [7, 7, 7]
    assert torch.equal(shares.test.x, dataset.test.x)


def test_indices_are_those_of_the_examples(dataset, rng) -> None:
    for source in ("train", "test"):
        shares = share_out(dataset, IID(samples=11), 4, auxiliary=3, shadow=5, rng=rng, source=source)
        split = dataset.train if source == "train" else dataset.test
        for client, held in zip(shares.clients, shares.client_indices, strict=True):
            assert torch.equal(client.x, split.x[held])
            assert torch.equal(client.y, split.y[held])
            assert torch.equal(client.users, split.users[held])
        assert torch.equal(shares.auxiliary.x, dataset.train.x[shares.auxiliary_indices])
        assert torch.equal(shares.shadow.y, dataset.train.y[shares.shadow_indices])
        assert shares.source == source


def test_clients_from_the_test_split(dataset, rng) -> None:
    shares = share_out(dataset, HalfQuarterRest(16), 12, auxiliary=60, rng=rng, source="test")
    held = set().union(*(indices(client.x) for client in shares.clients))
    assert torch.bincount(shares.auxiliary.y).tolist() == [60, 60, 60]
    assert indices(shares.test.x) == set(range(240)) - held
    assert 0 < len(shares.test) < 240
    assert len(share_out(dataset, IID(), 2, rng=rng, source="test").test) == 0


def test_nothing_for_the_adversary(dataset, rng) -> None:
    shares = share_out(dataset, IID(), 3, rng=rng)
    assert len(shares.auxiliary) == len(shares.shadow) == 0
    assert shares.auxiliary.x.shape == (0, 1)
    assert sum(map(len, shares.clients)) == 270


def test_the_rest_keeps_its_order(dataset, rng) -> None:
    shares = share_out(dataset, Contiguous(), 3, auxiliary=5, shadow=20, rng=rng)
    held = torch.cat(shares.client_indices)
    assert len(held) == 270 - 35
    assert (held.diff() > 0).all()


def test_users_stay_whole(dataset, rng) -> None:
    shares = share_out(dataset, ByUser(), 3, auxiliary=2, rng=rng)
    users = [set(client.users.tolist()) for client in shares.clients]
    assert len(set.union(*users)) == sum(map(len, users)) == 9


def equal(left: Shares, right: Shares) -> bool:
    return (
        torch.equal(left.auxiliary_indices, right.auxiliary_indices)
        and torch.equal(left.shadow_indices, right.shadow_indices)
        and all(torch.equal(a, b) for a, b in zip(left.client_indices, right.client_indices, strict=True))
    )


def test_the_seed_decides(dataset) -> None:
    first, again, other = (
        share_out(dataset, IID(), 3, auxiliary=5, shadow=20, rng=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert equal(first, again)
    assert not torch.equal(first.auxiliary_indices, other.auxiliary_indices)
    assert not torch.equal(first.shadow_indices, other.shadow_indices)


def test_the_shadow_is_a_random_part(dataset, rng) -> None:
    """30 of 270, by class and by place: the chance that all lie in the first half is below 1e-9."""
    shadow = share_out(dataset, IID(), 3, shadow=30, rng=rng).shadow_indices
    assert len(shadow.unique()) == 30
    assert shadow.min() < 135 <= shadow.max()


def test_too_few_of_a_class(dataset, rng) -> None:
    with pytest.raises(NotEnoughExamples) as caught:
        share_out(dataset, IID(), 3, auxiliary=91, rng=rng)
    assert caught.value.problem == (
        "toy: the auxiliary set lacks examples. class 1: wanted 91, available 90; class 2: wanted 91, available 60."
    )
    assert len(share_out(dataset, IID(), 3, auxiliary=60, rng=rng).auxiliary) == 180


def test_a_class_that_the_data_lack(make_examples, rng) -> None:
    dataset = Dataset("toy", ("a", "b", "c"), make_examples([50, 50]), make_examples([5, 5]))
    with pytest.raises(NotEnoughExamples, match="class 2: wanted 1, available 0"):
        share_out(dataset, IID(), 2, auxiliary=1, rng=rng)


def test_too_few_for_the_shadow(dataset, rng) -> None:
    with pytest.raises(NotEnoughExamples, match="wants 241 examples of all classes, available 240 after 30"):
        share_out(dataset, IID(), 3, auxiliary=10, shadow=241, rng=rng)
    with pytest.raises(NotEnoughExamples, match="0 are available"):
        share_out(dataset, IID(), 3, auxiliary=10, shadow=240, rng=rng)


def test_the_partition_sees_only_the_rest(dataset, rng) -> None:
    rows: Partition = Compositions(((60, 60, 60),))
    share_out(dataset, rows, 1, rng=rng)
    with pytest.raises(NotEnoughExamples, match="class 2: wanted 60, available 59"):
        share_out(dataset, rows, 1, auxiliary=1, rng=rng)


def test_negative_counts(dataset, rng) -> None:
    with pytest.raises(UsageError, match="got -1 and 0"):
        share_out(dataset, IID(), 3, auxiliary=-1, rng=rng)
