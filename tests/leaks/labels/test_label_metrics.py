"""Label metrics: multiset overlap and count error, by brute force and by hand; chance is the best trivial guess."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedspill.evidence import Curve
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.metrics import LabelCountError, LabelSuccess, baselines, overlap
from fedspill.trace import Origin, Truth


def case(guess: list[list[int]], real: list[list[int]]) -> tuple[LabelCounts, Truth]:
    origins = [Origin(number, "client:0") for number in range(len(real))]
    facts = {(origin, "label_counts"): torch.tensor(row) for origin, row in zip(origins, real, strict=True)}
    return LabelCounts(origins[: len(guess)], torch.tensor(guess)), Truth(facts)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_overlap_is_that_of_the_two_multisets(pairs: list[tuple[int, int]]) -> None:
    guess, real = ([pair[side] for pair in pairs] for side in (0, 1))
    if sum(real) == 0:
        return
    left, right = (Counter({label: count for label, count in enumerate(counts)}) for counts in (guess, real))
    common = (left & right).total()
    found = float(overlap(torch.tensor([guess]), torch.tensor([real])))
    assert found == pytest.approx(common / max(sum(guess), sum(real)))


def test_overlap_is_the_best_matching_of_labels() -> None:
    """Every order of the guessed labels against the true ones: the best agrees in as many places as the multisets."""
    for guess, real in itertools.product(itertools.product(range(4), repeat=3), repeat=2):
        if sum(guess) != sum(real) or not 0 < sum(real) <= 5:
            continue
        labels = [label for label, count in enumerate(guess) for _ in range(count)]
        true = [label for label, count in enumerate(real) for _ in range(count)]
        best = max(
            sum(a == b for a, b in zip(order, true, strict=True)) for order in set(itertools.permutations(labels))
        )
        assert float(overlap(torch.tensor([guess]), torch.tensor([real]))) == pytest.approx(best / len(true))


def test_success_by_hand() -> None:
    score = LabelSuccess().score(*case([[3, 1, 0], [0, 2, 2]], [[2, 1, 1], [0, 4, 0]]))
    assert score.value == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert score.n == 2
    assert score.status == "ok"


def test_naming_every_label_often_recovers_none() -> None:
    score = LabelSuccess().score(*case([[100, 100, 100]], [[2, 1, 1]]))
    assert score.value == pytest.approx(4 / 300)


def test_error_by_hand() -> None:
    score = LabelCountError().score(*case([[3, 1, 0], [0, 2, 2]], [[2, 1, 1], [0, 4, 0]]))
    assert score.value == pytest.approx((2 / 3 + 4 / 3) / 2)
    assert LabelCountError().score(*case([[2, 1, 1]], [[2, 1, 1]])).value == 0.0


def test_perfect_guesses_score_what_the_metric_calls_perfect() -> None:
    real = [[5, 0, 3], [1, 1, 6], [8, 0, 0]]
    for metric in (LabelSuccess(), LabelCountError()):
        score = metric.score(*case(real, real))
        assert score.value == metric.perfect
        assert score.low <= score.value <= score.high


def test_chance_is_the_best_of_even_majority_and_random() -> None:
    skewed = [[9, 1, 0], [8, 1, 1], [10, 0, 0]]  # always guessing class 0 gets 27 of 30
    assert LabelSuccess().score(*case(skewed, skewed)).chance == pytest.approx(27 / 30)
    even = [[4, 3, 3], [3, 4, 3], [3, 3, 4]]  # even counts (4, 3, 3) get 10, 9 and 9 of 10
    assert LabelSuccess().score(*case(even, even)).chance == pytest.approx(28 / 30)
    assert LabelCountError().score(*case(even, even)).chance == pytest.approx((0 + 2 / 3 + 2 / 3) / 3)
    assert LabelCountError().score(*case(skewed, skewed)).chance == pytest.approx((2 / 3 + 4 / 3 + 0) / 3)


def test_chance_is_what_the_best_guess_without_access_gets_and_does_not_depend_on_the_attack() -> None:
    rng = torch.Generator().manual_seed(5)
    real = torch.randint(0, 6, (30, 7), generator=rng) + 1
    guess = torch.randint(0, 6, (30, 7), generator=rng)
    score = LabelSuccess().score(*case(guess.tolist(), real.tolist()))
    best = max(float(overlap(base, real).mean()) for base in baselines(real))
    assert score.chance == pytest.approx(best, abs=0.01), "chosen without hindsight, so not to the digit"
    assert score.chance == LabelSuccess().score(*case(real.tolist(), real.tolist())).chance


def test_baselines_name_as_many_labels_as_there_are() -> None:
    real = torch.tensor([[5, 0, 2, 0], [0, 0, 0, 1], [9, 9, 9, 9]])
    for base in baselines(real):
        assert base.sum(1).tolist() == [7, 1, 36]
        assert int(base.min()) >= 0
    assert baselines(real)[0].tolist() == [[2, 2, 2, 1], [1, 0, 0, 0], [9, 9, 9, 9]]
    assert torch.equal(torch.stack(baselines(real)), torch.stack(baselines(real))), "the same every time"


def test_all_batches_at_a_hundred_percent_are_not_a_certainty() -> None:
    real = [[8, 8], [4, 12], [16, 0]]
    score = LabelSuccess().score(*case(real, real))
    assert (score.value, score.high) == (1.0, 1.0)
    assert 0.25 < score.low < 1.0, "three rounds, each right or wrong as a whole, say no more"
    more = LabelSuccess().score(*case(real * 20, real * 20))
    assert score.low < more.low < 1.0


def test_all_batches_at_nothing_are_no_certainty_either() -> None:
    score = LabelSuccess().score(*case([[0, 16]] * 3, [[16, 0]] * 3))
    assert (score.value, score.low) == (0.0, 0.0)
    assert 0.0 < score.high < 0.75


def test_a_single_batch_says_little() -> None:
    score = LabelSuccess().score(*case([[10, 0]], [[10, 0]]))
    assert score.n == 1
    assert score.low < 0.05
    assert score.high == 1.0
    error = LabelCountError().score(*case([[9, 1]], [[10, 0]]))
    assert error.low < 0.2
    assert error.high > 5, "of a class with ten samples"


def unscored(guess: LabelCounts, truth: Truth, why: str) -> None:
    for metric in (LabelSuccess(), LabelCountError()):
        score = metric.score(guess, truth)
        assert score.status == "unscored"
        assert why in score.why
        assert math.isnan(score.value)
        assert math.isnan(score.low)
        assert math.isnan(score.chance)


def test_what_cannot_be_scored_is_unscored_and_not_zero() -> None:
    guess, truth = case([[1, 2]], [[1, 2]])
    unscored(LabelCounts([], torch.zeros(0, 2, dtype=torch.int64)), truth, "nothing to score")
    unscored(
        LabelCounts([Origin(9, "client:7")], guess.counts),
        truth,
        "nothing is known of the labels of client:7 in round 9",
    )
    unscored(LabelCounts(guess.of, torch.tensor([[1, 1, 1]])), truth, "speaks of 3 classes, there are 2")
    unscored(LabelCounts(guess.of, torch.tensor([[3]])), truth, "speaks of 1 classes, there are 2")


def test_a_batch_without_labels_cannot_be_scored() -> None:
    score = LabelSuccess().score(*case([[0, 0], [1, 1]], [[0, 0], [1, 1]]))
    assert score.status == "unscored"


def test_every_score_has_its_n_its_interval_and_its_chance() -> None:
    rng = torch.Generator().manual_seed(6)
    for number in (2, 3, 10, 60):
        real: Tensor = torch.randint(0, 5, (number, 4), generator=rng) + 1
        guess: Tensor = torch.randint(0, 5, (number, 4), generator=rng)
        for metric in (LabelSuccess(), LabelCountError()):
            score = metric.score(*case(guess.tolist(), real.tolist()))
            assert score.n == number
            assert -math.inf < score.low <= score.value <= score.high < math.inf
            assert math.isfinite(score.chance)


def test_what_an_attack_stated_is_shown_against_what_it_had() -> None:
    """Ten batches in five groups, the least confident first, whatever order they came in."""
    right = [10, 0, 8, 2, 6, 4, 4, 6, 2, 8]
    guess, truth = case([[n, 10 - n] for n in right], [[10, 0]] * 10)
    guess = replace(guess, confidence=torch.tensor(right) / 10)
    (curve,) = [shown for shown in LabelSuccess().evidence(guess, truth, private=False) if isinstance(shown, Curve)]
    assert curve.title == "Confidence against success"
    assert curve.x == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert curve.y == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    few, same = case([[1, 9]] * 9, [[10, 0]] * 9)
    few = replace(few, confidence=torch.ones(9))
    assert not any(isinstance(shown, Curve) for shown in LabelSuccess().evidence(few, same, private=False))
