"""Main labels: how many, how large, which ones, and what is refused."""

import pytest
import torch
from scipy import stats

from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partitions.main_labels import MainLabels


def counts_of(partition: MainLabels, examples, clients: int, rng) -> torch.Tensor:
    shares = partition.split(examples, clients, rng)
    return torch.stack([torch.bincount(examples.y[share], minlength=int(examples.y.max()) + 1) for share in shares])


def test_the_papers_hundred_clients(make_examples, rng) -> None:
    counts = counts_of(MainLabels(per_label=60), make_examples([5000] * 10), 100, rng)
    assert set(counts.unique().tolist()) == {0, 5, 60}
    assert set((counts == 60).sum(1).tolist()) == {3, 4, 5}
    assert ((counts == 5).sum(1) == 2).all()


def test_labels_and_their_number_are_uniform(make_examples, rng) -> None:
    """Two chi-square tests over 3000 clients; a fair draw fails one with probability 2e-6 at most.

    Labels within a client exclude each other, which only makes their counts more even than the test supposes.
    """
    main = counts_of(MainLabels(per_label=2, minor=1, minor_samples=1), make_examples([5000] * 10), 3000, rng) == 2
    assert stats.chisquare(torch.bincount(main.sum(1))[3:6]).pvalue > 1e-6
    assert stats.chisquare(main.sum(0)).pvalue > 1e-6


def test_seven_classes_leave_room_for_five_and_two(make_examples, rng) -> None:
    counts = counts_of(MainLabels(low=5), make_examples([700] * 7), 10, rng)
    assert counts.sort(1).values.tolist() == [[5, 5] + [50] * 5] * 10


def test_absent_classes_are_nobodys_label(make_examples, rng) -> None:
    counts = counts_of(MainLabels(), make_examples([900, 0, 900, 900, 0, 900, 900, 900, 900]), 10, rng)
    assert counts[:, [1, 4]].sum() == 0


def test_shortage_names_the_class(make_examples, rng) -> None:
    with pytest.raises(NotEnoughExamples, match=r"class 2: wanted 500, available 499. Lower per_label"):
        MainLabels(low=3, high=3, minor=0).split(make_examples([500, 500, 499]), 10, rng)
    MainLabels(low=3, high=3, minor=0).split(make_examples([500, 500, 500]), 10, rng)


def test_reuse(make_examples, rng) -> None:
    counts = counts_of(MainLabels(low=3, high=3, minor=0, reuse=True), make_examples([500, 500, 20]), 10, rng)
    assert (counts == 50).all()


def test_too_few_classes(make_examples, rng) -> None:
    with pytest.raises(UsageError, match="up to 5 main and 2 other labels, the data have 6"):
        MainLabels().split(make_examples([500] * 6), 3, rng)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 0}, "low must be at least 1"),
        ({"low": 4, "high": 3}, "4 to 3"),
        ({"per_label": 0}, "per_label must be at least 1"),
        ({"minor": -1}, "minor must be at least 0"),
        ({"per_label": 5}, "fewer examples than main"),
    ],
)
def test_bad_options(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MainLabels(**options)
