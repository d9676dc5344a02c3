"""iid, contiguous and by-user: what each client gets, and what is refused."""

import pytest
import torch
from scipy import stats

from fedspill.dataset import Examples
from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partitions.by_user import ByUser
from fedspill.partitions.contiguous import Contiguous
from fedspill.partitions.drawing import numpy_generator
from fedspill.partitions.iid import IID


def test_iid_uses_everything_evenly(make_examples, rng) -> None:
    shares = IID().split(make_examples([51, 52]), 10, rng)
    assert sorted(len(share) for share in shares) == [10] * 7 + [11] * 3
    assert sorted(torch.cat(shares).tolist()) == list(range(103))


def test_iid_ignores_class_and_order(rng) -> None:
    """Chi-square of clients against classes; a fair partition fails with probability 1e-6 at most."""
    y = torch.arange(5).repeat_interleave(1000)  # sorted: a partition that forgot to shuffle gives one class per client
    shares = IID().split(Examples(y[:, None].float(), y), 5, rng)
    table = torch.stack([torch.bincount(y[share], minlength=5) for share in shares])
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-6


@pytest.mark.parametrize("kind", [IID, Contiguous])
def test_samples_per_client(kind, make_examples, rng) -> None:
    shares = kind(samples=7).split(make_examples([50, 50]), 14, rng)
    assert [len(share) for share in shares] == [7] * 14
    with pytest.raises(NotEnoughExamples, match="wanted 105 for 15 clients, available 100"):
        kind(samples=7).split(make_examples([50, 50]), 15, rng)


@pytest.mark.parametrize("kind", [IID, Contiguous])
def test_more_clients_than_examples(kind, make_examples, rng) -> None:
    with pytest.raises(NotEnoughExamples, match="wanted 5 for 5 clients, available 4"):
        kind().split(make_examples([2, 2]), 5, rng)
    assert [len(share) for share in kind().split(make_examples([2, 2]), 4, rng)] == [1, 1, 1, 1]


def test_contiguous_blocks_are_in_order(make_examples, rng) -> None:
    shares = Contiguous().split(make_examples([10, 13]), 4, rng)
    assert torch.equal(torch.cat(shares), torch.arange(23))
    assert [len(share) for share in shares] == [6, 6, 6, 5]


def test_contiguous_as_in_celeba(make_examples, rng) -> None:
    shares = Contiguous(samples=19_759).split(make_examples([100_000, 102_599]), 10, rng)
    assert [(int(share[0]), int(share[-1])) for share in shares] == [
        (client * 19_759, (client + 1) * 19_759 - 1) for client in range(10)
    ]


def test_users_are_never_split(make_examples, rng) -> None:
    examples = make_examples([100, 100], users=23)
    shares = ByUser().split(examples, 5, rng)
    users = [set(examples.users[share].tolist()) for share in shares]
    assert sorted(map(len, users)) == [4, 4, 5, 5, 5]
    assert set.union(*users) == set(range(1000, 1023))
    assert sum(map(len, users)) == 23
    assert sorted(torch.cat(shares).tolist()) == list(range(200))


def test_some_users_per_client(make_examples, rng) -> None:
    examples = make_examples([100, 100], users=23)
    shares = ByUser(users=1).split(examples, 5, rng)
    for share in shares:
        (user,) = examples.users[share].unique().tolist()
        assert torch.equal(share, torch.nonzero(examples.users == user).flatten())
    assert len({int(examples.users[share[0]]) for share in shares}) == 5


def test_too_few_users(make_examples, rng) -> None:
    with pytest.raises(NotEnoughExamples, match="wanted 24 for 24 clients, available 23"):
        ByUser().split(make_examples([100, 100], users=23), 24, rng)
    with pytest.raises(NotEnoughExamples, match="wanted 24 for 8 clients, available 23"):
        ByUser(users=3).split(make_examples([100, 100], users=23), 8, rng)


def test_no_users(make_examples, rng) -> None:
    with pytest.raises(UsageError, match="these examples have none"):
        ByUser().split(make_examples([100, 100]), 2, rng)


@pytest.mark.parametrize("make", [lambda: IID(samples=0), lambda: Contiguous(samples=-1), lambda: ByUser(users=0)])
def test_options_below_one(make) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        make()


def test_numpy_generator_follows_and_advances() -> None:
    rng, again = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    first, second = numpy_generator(rng).random(3), numpy_generator(rng).random(3)
    assert (first == numpy_generator(again).random(3)).all()
    assert (first != second).all()
