"""Half-quarter-rest and uniform batches: exact counts, uniform rest, shortage, overlap."""

import logging

import pytest
import torch
from scipy import stats

from fedspill.errors import NotEnoughExamples, UsageError
from fedspill.partitions.drawing import class_counts, uniform_counts
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.partitions.uniform_batch import UniformBatch


def counts_of(partition, examples, clients: int, rng) -> torch.Tensor:
    shares = partition.split(examples, clients, rng)
    return torch.stack([torch.bincount(examples.y[share], minlength=int(examples.y.max()) + 1) for share in shares])


class TestHalfQuarterRest:
    def test_half_and_quarter_on_cifar100s_test_split(self, make_examples, rng) -> None:
        """Of 1000 classes the rest of 32 hits a or b rarely, so the two largest counts tell half and quarter apart."""
        counts = counts_of(HalfQuarterRest(distinct=True), make_examples([100] * 1000), 100, rng)
        largest = counts.sort(1, descending=True).values
        assert (counts.sum(1) == 128).all()
        assert largest[:, 0].min() == 64
        assert largest[:, 1].min() == 32
        assert largest[:, 0].double().mean() < 64.5  # 64.032 expected
        assert largest[:, 1].double().mean() < 32.5
        assert largest[:, 2].max() < 8

    @pytest.mark.parametrize(("batch", "half", "quarter"), [(4, 2, 1), (7, 3, 1), (1, 0, 0), (2, 1, 0)])
    def test_small_batches(self, batch: int, half: int, quarter: int, make_examples, rng, monkeypatch) -> None:
        """With the rest taken away, exactly half and quarter remain."""
        monkeypatch.setattr(
            "fedspill.partitions.half_quarter_rest.uniform_counts",
            lambda sizes, available, rng: uniform_counts(sizes, torch.tensor([0] * 9 + [1]), rng),
        )
        examples = make_examples([0] + [100] * 8 + [300])
        counts = counts_of(HalfQuarterRest(batch, distinct=True), examples, 50, rng)
        assert (counts.sum(1) == batch).all()
        without_last = counts[counts[:, 9] == batch - half - quarter, :9]
        assert len(without_last) > 0
        for row in without_last.tolist():
            assert sorted(row)[-2:] == sorted([half, quarter])

    def test_a_and_b_may_coincide_unless_distinct(self, make_examples, rng) -> None:
        """Two classes, 200 clients: both cases turn up unless a fair coin falls one way 200 times."""
        examples = make_examples([2000, 2000])
        any_pair = counts_of(HalfQuarterRest(400), examples, 200, rng).amax(1)
        apart = counts_of(HalfQuarterRest(400, distinct=True), examples, 200, rng).amax(1)
        assert (any_pair >= 300).any()  # 300 of one class, and about 50 of the rest
        assert (any_pair < 300).any()
        assert (apart < 300).all()  # 200 and about 50; 300 would need all the rest
        assert (apart >= 200).all()

    def test_rest_is_uniform(self, make_examples, rng) -> None:
        """Chi-square of 2000 single labels (batch 1 is all rest); a fair draw fails with probability 1e-6 at most."""
        examples = make_examples([10, 20, 400, 30])  # uniform over classes, not over examples
        assert stats.chisquare(counts_of(HalfQuarterRest(1), examples, 2000, rng).sum(0)).pvalue > 1e-6

    def test_refuses_what_the_class_lacks(self, make_examples, rng) -> None:
        with pytest.raises(NotEnoughExamples, match=r"class \d+: wanted 1[2-4]\d, available 100") as caught:
            HalfQuarterRest(256, distinct=True).split(make_examples([100] * 100), 20, rng)
        assert "set shortage to 'cap' or 'reuse'" in caught.value.remedy

    def test_cap_gives_100_of_128_and_fills_up(self, make_examples, rng, caplog) -> None:
        """CIFAR-100's test split at batch 256: class a has 100 of the 128 wanted, so the rest grows from 64 to 92."""
        examples = make_examples([100] * 100)
        with caplog.at_level(logging.WARNING, logger="fedspill.partitions"):
            counts = counts_of(HalfQuarterRest(256, distinct=True, shortage="cap"), examples, 50, rng)
        assert "50 of 50 clients capped" in caplog.text
        largest = counts.sort(1, descending=True).values
        assert (counts.sum(1) == 256).all()
        assert largest[:, 0].min() == 100
        assert largest[:, 1].min() == 64
        rest = 256 - largest[:, 0] - largest[:, 1]
        assert 88 < rest.double().mean() < 92  # 92 less the few that fall on a or b: 90.2, sd 0.2

    def test_cap_says_nothing_where_there_is_enough(self, make_examples, rng, caplog) -> None:
        with caplog.at_level(logging.WARNING, logger="fedspill.partitions"):
            HalfQuarterRest(shortage="cap").split(make_examples([100] * 100), 20, rng)
        assert not caplog.records

    def test_cap_at_batch_1024(self, make_examples, rng) -> None:
        """Half and quarter are both 100 there, and the rest is 824."""
        counts = counts_of(HalfQuarterRest(1024, distinct=True, shortage="cap"), make_examples([100] * 100), 20, rng)
        largest = counts.sort(1, descending=True).values
        assert (counts.sum(1) == 1024).all()
        assert largest[:, 1].min() >= 100
        assert largest[:, 2].max() < 60

    def test_reuse_keeps_the_composition(self, make_examples, rng) -> None:
        examples = make_examples([100] * 100)
        shares = HalfQuarterRest(256, distinct=True, shortage="reuse").split(examples, 20, rng)
        for share in shares:
            counts = torch.bincount(examples.y[share], minlength=100).sort(descending=True).values
            assert counts[0] >= 128
            assert counts[1] >= 64
            assert len(share) == 256
            assert torch.bincount(share).max() == 2  # 128 to 200 of 100 images: each once or twice

    def test_clients_draw_apart_unless_disjoint(self, make_examples, rng) -> None:
        examples = make_examples([40] * 10)
        together = torch.cat(HalfQuarterRest(16).split(examples, 50, rng))
        assert len(together) == 800  # twice what there is
        apart = torch.cat(HalfQuarterRest(16, disjoint=True).split(examples, 5, rng))
        assert len(apart.unique()) == 80
        with pytest.raises(NotEnoughExamples, match="drop disjoint"):
            HalfQuarterRest(16, disjoint=True).split(examples, 50, rng)

    def test_batches_are_shuffled(self, make_examples, rng) -> None:
        """The first 13, one local step of LLBG's ten, are not all of one class."""
        examples = make_examples([100] * 100)
        shares = HalfQuarterRest(distinct=True).split(examples, 50, rng)
        assert sum(len(examples.y[share[:13]].unique()) == 1 for share in shares) == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch": 0}, "batch must be at least 1"),
            ({"shortage": "ignore"}, "refuse, cap or reuse"),
            ({"shortage": "cap", "disjoint": True}, "repeats images"),
        ],
    )
    def test_bad_options(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            HalfQuarterRest(**options)

    def test_distinct_needs_two_classes(self, make_examples, rng) -> None:
        with pytest.raises(UsageError, match="distinct needs two classes"):
            HalfQuarterRest(distinct=True).split(make_examples([500]), 1, rng)


class TestUniformBatch:
    def test_labels_are_iid_uniform(self, make_examples, rng) -> None:
        """Totals by chi-square, and the spread of single counts against Binomial(100, 1/100).

        Chance of a false alarm: 1e-6 for the first, 6e-7 (5 standard errors) for the second.
        """
        examples = make_examples([50, 100] * 50)
        counts = counts_of(UniformBatch(), examples, 400, rng)
        assert (counts.sum(1) == 100).all()
        assert stats.chisquare(counts.sum(0)).pvalue > 1e-6
        squares = (counts - 1).double().square().mean(1)  # expectation 100 * .01 * .99; one per class would give 0
        assert abs(float(squares.mean()) - 0.99) < 5 * float(squares.std()) / 20

    def test_shortage(self, make_examples, rng) -> None:
        with pytest.raises(NotEnoughExamples, match=r"class 1: wanted \d+, available 3"):
            UniformBatch().split(make_examples([100, 3]), 1, rng)
        examples = make_examples([100, 3])
        (share,) = UniformBatch(reuse=True).split(examples, 1, rng)
        assert int(examples.y[share].sum()) > 3
        assert len(share[examples.y[share] == 1].unique()) == 3

    def test_disjoint(self, make_examples, rng) -> None:
        examples = make_examples([40] * 10)
        assert len(torch.cat(UniformBatch(10, disjoint=True).split(examples, 20, rng)).unique()) == 200
        with pytest.raises(NotEnoughExamples, match="drop disjoint"):
            UniformBatch(10, disjoint=True).split(examples, 41, rng)

    def test_absent_classes_never_come_up(self, make_examples, rng) -> None:
        counts = counts_of(UniformBatch(50), make_examples([200, 0, 200]), 20, rng)
        assert counts[:, 1].sum() == 0

    def test_reuse_and_disjoint_exclude_each_other(self) -> None:
        with pytest.raises(UsageError, match="disjoint forbids"):
            UniformBatch(disjoint=True, reuse=True)


def test_class_counts(make_examples) -> None:
    assert class_counts(make_examples([3, 0, 5])).tolist() == [3, 0, 5]
    assert class_counts(make_examples([3, 0, 5]), 5).tolist() == [3, 0, 5, 0, 0]
