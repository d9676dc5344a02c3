"""Metrics of compositions, presence, quantities and groups on numbers worked out by hand."""

import pytest
import torch

from fedspill.evidence import Curve
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.metrics import CompositionL1, CompositionL2, CompositionLInf, FalseNulls, NullRecall
from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.groups.metrics import ExactGroups, LargestGroup, RankCorrelation, correlation_interval
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.presence.metrics import BalancedPresence, PresenceSuccess
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.metrics import QuantityError, WithinFivePercent, WithinOne
from fedspill.trace import Origin, Truth

ONE, TWO, SUM, MODEL = Origin(0, "client:0"), Origin(0, "client:1"), Origin(0, "aggregator"), Origin(0, "server")


def proportions(shares: list[list[float]], answered: list[bool] | None = None) -> tuple[Proportions, Truth]:
    table = torch.tensor(shares, dtype=torch.float64)
    told = torch.tensor(answered or [True] * len(table))
    truth = Truth({(ONE, "label_counts"): torch.tensor([5, 5, 0]), (TWO, "label_counts"): torch.tensor([0, 10, 0])})
    return Proportions([ONE, TWO][: len(table)], table, table == 0, torch.ones(len(table)), told), truth


def test_distances() -> None:
    guess, truth = proportions([[0.4, 0.4, 0.2], [0.0, 1.0, 0.0]])
    assert CompositionL1().score(guess, truth).value == pytest.approx(0.2)
    assert CompositionL2().score(guess, truth).value == pytest.approx(0.5 * 0.06**0.5)
    assert CompositionLInf().score(guess, truth).value == pytest.approx(0.1)
    assert CompositionL1().score(guess, truth).chance > 0.3


def test_null_classes() -> None:
    guess, truth = proportions([[0.0, 0.8, 0.2], [0.0, 1.0, 0.0]])
    assert NullRecall().score(guess, truth).value == pytest.approx(0.5)
    assert FalseNulls().score(guess, truth).value == pytest.approx(0.25)


def test_what_is_not_answered_is_not_scored() -> None:
    guess, truth = proportions([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], [True, False])
    score = CompositionL1().score(guess, truth)
    assert (score.value, score.n) == (0.0, 1)
    guess, truth = proportions([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], [False, False])
    assert CompositionL1().score(guess, truth).status == "unscored"


def test_rounds_of_one_client_are_one_client() -> None:
    again = Origin(1, "client:0")
    shares = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    guess = Proportions([ONE, again], shares, shares == 0, torch.ones(2), torch.ones(2, dtype=torch.bool))
    truth = Truth({(origin, "label_counts"): torch.tensor([1, 1]) for origin in (ONE, again)})
    score = CompositionL1().score(guess, truth)
    assert (score.value, score.n) == (0.5, 1)


ROUND = Truth({
    (SUM, "clients"): torch.tensor([0, 3, 5]),
    (SUM, "label_counts_by_client"): torch.tensor([[60, 60, 0, 0], [60, 3, 0, 0], [60, 60, 3, 0]]),
})  # fmt: skip


def test_presence_counts_main_labels_of_the_others() -> None:
    guess = Presence([SUM], torch.tensor([[True, True, True, False]]), "client:0")
    assert PresenceSuccess().score(guess, ROUND).value == 0.75
    assert PresenceSuccess(owned="any").score(guess, ROUND).value == 1.0
    assert BalancedPresence().score(guess, ROUND).value == pytest.approx(0.75)
    always = Presence([SUM], torch.ones(1, 4, dtype=torch.bool), None)
    assert BalancedPresence().score(always, ROUND).value == pytest.approx(0.5)


def test_quantities_within_bounds_and_aborts() -> None:
    guess = ClassQuantities([SUM], torch.tensor([[3.9, 3.4, 0.04, torch.nan]], dtype=torch.float64))
    assert WithinOne().score(guess, ROUND).value == pytest.approx(0.5)  # truth 3, 2, 0, 0
    assert WithinOne(rounded=True).score(guess, ROUND).value == pytest.approx(0.75)
    assert WithinFivePercent().score(guess, ROUND).value == pytest.approx(0.25)
    assert QuantityError().score(guess, ROUND).value == pytest.approx((0.9 + 1.4 + 0.04) / 4)


def test_groups() -> None:
    truth = Truth({(MODEL, "label_totals"): torch.tensor([500, 125, 100, 500])})

    def scored(group: list[int], told: bool = True) -> list[float]:
        amount = -torch.tensor([group], dtype=torch.float64)
        guess = Groups([MODEL], torch.tensor([group]), amount, torch.tensor([told]))
        return [metric.score(guess, truth).value for metric in (ExactGroups(), LargestGroup(), RankCorrelation())]

    assert scored([0, 1, 2, 0]) == pytest.approx([1, 1, 1])
    assert scored([0, 1, 1, 0])[:2] == [0, 1]
    assert scored([0, 1, 1, 0], told=False)[:2] == [0, 0]


def test_another_number_of_classes_is_not_scored() -> None:
    assert WithinOne().score(ClassQuantities([SUM], torch.zeros(1, 3)), ROUND).status == "unscored"


def test_the_interval_of_a_rank_correlation_covers() -> None:
    """Ten labels of true correlation 0 and about 0.8: 95 % intervals miss in about 5 % of 2,000 draws."""
    rng = torch.Generator().manual_seed(5)
    for slope, expected in ((0.0, 0.0), (1.5, 0.79)):
        first = torch.randn(2000, 10, generator=rng, dtype=torch.float64)
        second = slope * first + torch.randn(2000, 10, generator=rng, dtype=torch.float64)
        ranks = [values.argsort(1).argsort(1).double() for values in (first, second)]
        rho = 1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum(1) / (10 * 99)
        missed = 0
        for value in rho:
            low, high = correlation_interval(value[None], torch.tensor([10]))
            missed += not low <= expected <= high
        assert missed / 2000 < 0.08


def test_federations_are_pooled_and_few_labels_say_nothing() -> None:
    values, labels = torch.full((4,), 0.5), torch.full((4,), 10)
    one, four = correlation_interval(values[:1], labels[:1]), correlation_interval(values, labels)
    assert four[1] - four[0] < 0.7 * (one[1] - one[0])
    assert correlation_interval(torch.tensor([1.0]), torch.tensor([3])) == (-1.0, 1.0)


def test_what_is_left_unexplained_is_shown_by_round() -> None:
    origins = [Origin(number, f"client:{index}") for number in (4, 2) for index in range(2)]
    shares = torch.full((4, 2), 0.5, dtype=torch.float64)
    left = torch.tensor([0.8, 0.6, 0.1, 0.3])
    told = torch.ones(4, dtype=torch.bool)
    guess = Proportions(origins, shares, shares == 0, torch.ones(4), told, unexplained=left)
    truth = Truth({(origin, "label_counts"): torch.tensor([1, 1]) for origin in origins})
    (curve,) = [shown for shown in CompositionL1().evidence(guess, truth, private=False) if isinstance(shown, Curve)]
    assert curve.x == [2.0, 4.0]
    assert curve.y == pytest.approx([0.2, 0.7])
