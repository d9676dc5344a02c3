"""Intervals cover what they claim to. Statistical tests: each states how often it fails by chance."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedspill.audit.severity import Levels, levels_of
from fedspill.chance import (
    chance_without_hindsight,
    composition_chance,
    even_overlap,
    label_chance,
    others_mean,
    quantity_chance,
)
from fedspill.curve_intervals import Ranking, measure_area, measure_tpr, own_clusters, roc_area, tpr_at_fpr
from fedspill.differences import beyond_noise, difference
from fedspill.errors import NotScored
from fedspill.guess import Guess
from fedspill.intervals import (
    CLIENTS,
    CORRELATION,
    FEDERATIONS,
    RECORDED,
    ROUNDS,
    SHARE,
    Interval,
    OverFederations,
    Proof,
    Sample,
    Scale,
    cluster_means,
    composition_scale,
    effective_trials,
    interval_over_clusters,
    mean_interval,
    measure_mean,
    within_confidence,
)
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.metric import Measured, Metric, Score
from fedspill.rate_intervals import Answers, measure_balanced
from fedspill.trace import Origin, Truth


def levels(value: float, interval: Interval, chance: float, proof: Proof | None = None, perfect: float = 1.0) -> Levels:
    return levels_of(Score(value, interval.low, interval.high, 1, chance, proof=proof), perfect)


RUNS = 200
# An interval that covers 95 % covers fewer than 178 times in 200 in less than one run in 3,000.
LEAST = int(stats.binom.ppf(1 / 3000, RUNS, 0.95))
# A test that is wrong in 5 % of pairs is wrong in more than 22 of 200 in less than one run in 3,000.
MOST = int(stats.binom.ppf(1 - 1 / 3000, RUNS, 0.05))


def covered(interval: Callable[[np.random.Generator], Interval], true: float, seed: int) -> int:
    rng = np.random.default_rng(seed)
    found = [interval(rng) for _ in range(RUNS)]
    assert all(one.low <= one.high for one in found)
    return sum(one.low - 1e-12 <= true <= one.high + 1e-12 for one in found)


def numbers(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


def test_the_bars_are_what_they_say() -> None:
    assert (LEAST, MOST) == (178, 22)
    assert stats.binom.cdf(LEAST - 1, RUNS, 0.95) < 1 / 3000
    assert stats.binom.sf(MOST, RUNS, 0.05) < 1 / 3000


# Over clusters


@pytest.mark.parametrize("clusters", [4, 12, 30, 100])
@pytest.mark.parametrize("rate", [0.01, 0.02, 0.1, 0.3])
def test_it_covers_where_whole_clusters_fail(rate: float, clusters: int) -> None:
    """The regimes in which the interval of version 0.1 covered 24 to 63 %."""

    def interval(rng: np.random.Generator) -> Interval:
        return interval_over_clusters(numbers(rng.random(clusters) >= rate), SHARE)

    assert covered(interval, 1 - rate, seed=clusters) >= LEAST


@pytest.mark.parametrize("clusters", [4, 12])
def test_it_covers_where_whole_clusters_rarely_succeed(clusters: int) -> None:
    """ "Nothing found" must not be surer than it is."""

    def interval(rng: np.random.Generator) -> Interval:
        return interval_over_clusters(numbers(rng.random(clusters) < 0.05), SHARE)

    assert covered(interval, 0.05, seed=clusters) >= LEAST


@pytest.mark.parametrize(("share", "alike"), [(0.5, 0.3), (0.8, 0.02), (0.8, 0.2), (0.95, 0.05), (0.95, 0.3)])
@pytest.mark.parametrize("clusters", [3, 8, 30])
def test_it_covers_the_share_of_batches_that_differ(share: float, alike: float, clusters: int) -> None:
    """Batches of 32 labels whose own rate of success varies by a beta law with intra-cluster correlation `alike`."""
    strength = 1 / alike - 1

    def interval(rng: np.random.Generator) -> Interval:
        rates = rng.beta(share * strength, (1 - share) * strength, clusters)
        return interval_over_clusters(numbers(rng.binomial(32, rates) / 32), SHARE)

    assert covered(interval, share, seed=clusters) >= LEAST


@pytest.mark.parametrize("clients", [4, 7, 20])
def test_it_covers_skewed_distances(clients: int) -> None:
    """Log-normal L1 distances: Student's interval covers 82, 83 and 87 % of them."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.minimum(0.1 * np.exp(rng.normal(0, 1, n) - 0.5), 2)

    true = float(draw(np.random.default_rng(0), 2_000_000).mean())
    assert (
        covered(lambda rng: interval_over_clusters(numbers(draw(rng, clients)), composition_scale(0.8)), true, 1)
        >= LEAST
    )


@pytest.mark.parametrize("clients", [4, 7, 20])
def test_it_covers_distances_of_an_attack_that_rarely_falls_back_to_guessing(clients: int) -> None:
    def interval(rng: np.random.Generator) -> Interval:
        usual = rng.gamma(4, 0.02, clients)
        return interval_over_clusters(numbers(np.where(rng.random(clients) < 0.05, 0.8, usual)), composition_scale(0.8))

    assert covered(interval, 0.95 * 0.08 + 0.05 * 0.8, seed=clients) >= LEAST


def test_it_covers_rank_correlations() -> None:
    def interval(rng: np.random.Generator) -> Interval:
        return interval_over_clusters(numbers(2 * rng.beta(9, 1, 5) - 1), CORRELATION)

    assert covered(interval, 0.8, seed=3) >= LEAST


def test_it_covers_when_clients_are_heard_unequally_often() -> None:
    """The mean over messages: half of the clients send ten times as many, and are read worse."""

    def interval(rng: np.random.Generator) -> Interval:
        busy = rng.random(12) < 0.5
        rate = rng.beta(np.where(busy, 6, 9), np.where(busy, 4, 1))
        return interval_over_clusters(numbers(rate), SHARE, weights=numbers(np.where(busy, 10.0, 1.0)))

    assert covered(interval, (10 * 0.6 + 0.9) / 11, seed=5) >= LEAST


def test_with_many_clusters_it_is_not_needlessly_wide() -> None:
    """At 400 clusters the one that is added costs less than a fifth of Student's width."""
    x = numbers(np.random.default_rng(2).beta(8, 2, 400))
    got, student = interval_over_clusters(x, SHARE), 2 * 1.966 * float(x.std()) / 20
    assert student < got.high - got.low < 1.2 * student


@pytest.mark.parametrize("clusters", [1, 2, 6, 24])
def test_clusters_that_are_all_right_give_the_interval_of_clopper_and_pearson(clusters: int) -> None:
    got = interval_over_clusters(torch.ones(clusters), SHARE)
    exact = stats.binomtest(clusters, clusters).proportion_ci(0.95)
    assert (got.low, got.high) == (pytest.approx(exact.low), 1.0)


def test_right_and_wrong_clusters_come_close_to_the_interval_of_clopper_and_pearson() -> None:
    got = interval_over_clusters(torch.tensor([1.0] * 70 + [0.0] * 30), SHARE)
    exact = stats.binomtest(70, 100).proportion_ci(0.95)
    assert got.low == pytest.approx(exact.low, abs=0.01)
    assert got.high == pytest.approx(exact.high, abs=0.01)


@pytest.mark.parametrize(
    "scale", [SHARE, CORRELATION, composition_scale(0.8), composition_scale(0.0), Scale(0, 1, 0.5)]
)
@pytest.mark.parametrize("clusters", [1, 2, 3, 30])
def test_it_stays_on_its_scale_and_is_never_a_point(scale: Scale, clusters: int) -> None:
    for at in (0.0, 0.3, 0.5, 1.0):
        value = scale.worst + at * (scale.perfect - scale.worst)
        got = interval_over_clusters(torch.full((clusters,), value), scale)
        assert scale.ends[0] <= got.low <= value <= got.high <= scale.ends[1]
        assert got.high - got.low > 0.005


def test_an_attack_no_better_than_guessing_still_has_an_interval() -> None:
    """A failure beside chance cannot be put at chance: that would add nothing, and leave a point."""
    got = interval_over_clusters(torch.full((8,), 0.8), composition_scale(0.8))
    assert got.low < 0.7
    assert got.high > 0.9


def test_more_alike_clusters_narrow_it() -> None:
    widths = [one.high - one.low for one in (interval_over_clusters(torch.ones(n), SHARE) for n in (1, 2, 6, 24, 200))]
    assert widths == sorted(widths, reverse=True)


def test_better_clusters_never_lower_it() -> None:
    """All right is no weaker evidence than nearly all right, but for the 0.03 that the binomial law's shape costs."""
    lows = [interval_over_clusters(torch.full((8,), v), SHARE).low for v in (0.7, 0.8, 0.9, 0.97, 0.99, 1.0)]
    assert all(later > earlier - 0.03 for earlier, later in pairwise(lows))
    assert max(lows) - lows[-1] < 0.04


def test_independent_trials_count_as_themselves() -> None:
    rng = np.random.default_rng(4)
    unit = numbers(rng.binomial(20, 0.8, 20_000) / 20)
    assert effective_trials(unit, torch.ones(20_000)) == pytest.approx(400_000, rel=0.03)


def test_values_off_the_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="between"):
        interval_over_clusters(torch.tensor([1.2]), SHARE)


def test_cluster_means_count_messages() -> None:
    means, counts = cluster_means(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([7, 7, 2]))
    assert means.tolist() == [1.0, 0.5]
    assert counts.tolist() == [1.0, 2.0]


# Over federations


def drawn(rng: np.random.Generator, federations: int, between: float, mean: float = 0.8) -> list[Sample]:
    """Eight clients with four messages each; clients differ by 0.05, their messages by 0.03."""
    clusters = torch.arange(8).repeat_interleave(4)
    found = []
    for _ in range(federations):
        centre = mean + between * rng.normal() + 0.05 * rng.normal(size=8)
        found.append(Sample(numbers(np.clip(np.repeat(centre, 4) + 0.03 * rng.normal(size=32), 0, 1)), clusters))
    return found


@pytest.mark.parametrize("federations", [3, 5])
@pytest.mark.parametrize("between", [0.0, 0.02, 0.06])
def test_three_federations_cover_the_mean_over_federations(between: float, federations: int) -> None:
    def interval(rng: np.random.Generator) -> Interval:
        return measure_mean(drawn(rng, federations, between), SHARE).interval()

    assert covered(interval, 0.8, seed=federations) >= LEAST


def test_three_federations_cover_where_clients_fail_rarely() -> None:
    """Student's interval is a point in 70 % of these draws."""

    def interval(rng: np.random.Generator) -> Interval:
        rows = [Sample(numbers(rng.random(8) >= 0.015), torch.arange(8)) for _ in range(3)]
        return measure_mean(rows, SHARE).interval()

    assert covered(interval, 0.985, seed=6) >= LEAST


def test_messages_of_one_client_are_not_counted_as_independent() -> None:
    """A hundred times the same message says no more than one."""
    once = Sample(torch.tensor([0.9, 0.7, 0.8, 0.6]), torch.arange(4))
    often = Sample(once.values.repeat_interleave(100), once.clusters.repeat_interleave(100))
    one, many = (measure_mean([sample], SHARE).interval() for sample in (once, often))
    assert (one.low, one.high) == (pytest.approx(many.low), pytest.approx(many.high))


def test_the_population_is_said() -> None:
    rng = np.random.default_rng(0)
    assert measure_mean(drawn(rng, 1, 0), SHARE).interval().population == CLIENTS
    assert measure_mean(drawn(rng, 2, 0), SHARE).interval().population == CLIENTS
    assert measure_mean(drawn(rng, 1, 0), SHARE, within=ROUNDS).interval().population == ROUNDS
    found = measure_mean(drawn(rng, 3, 0), SHARE).interval()
    assert (found.population, found.clusters) == (FEDERATIONS, 3)


def test_federations_that_all_score_one_have_an_interval() -> None:
    rows = [Sample(torch.ones(8), torch.arange(8))] * 3
    got = measure_mean(rows, SHARE).interval()
    assert got.low == pytest.approx(0.05 ** (1 / 24))
    assert got.high == 1.0


def test_distances_never_print_below_zero() -> None:
    rows = [Sample(torch.tensor([v, v / 2]), torch.arange(2)) for v in (0.02, 0.9, 0.4)]
    got = measure_mean(rows, composition_scale(0.9)).interval()
    assert 0 <= got.low <= got.high <= 2


# Two rates


def test_balanced_accuracy_is_covered() -> None:
    """Eleven rounds of ten labels, a third of them absent; rounds differ in how hard they are."""

    def interval(rng: np.random.Generator) -> Interval:
        there = rng.random((11, 10)) < 0.67
        skill = np.clip(rng.normal(0, 0.05, (11, 1)) + np.where(there, 0.9, 0.7), 0, 1)
        right = rng.random((11, 10)) < skill
        rounds = np.repeat(np.arange(11), 10)
        answers = Answers(*(torch.from_numpy(part.ravel()) for part in (right, there)), torch.from_numpy(rounds))
        return measure_balanced([answers]).interval()

    assert covered(interval, 0.8, seed=2) >= LEAST


def test_all_answers_right_is_one_and_no_point() -> None:
    there = torch.tensor([True, False] * 6)
    got = measure_balanced([Answers(torch.ones(12, dtype=torch.bool), there, torch.arange(6).repeat_interleave(2))])
    assert got.mean == 1.0
    assert got.interval().high == 1.0
    assert got.interval().low < 0.8


# Curves


def ranking(rng: np.random.Generator, shift: float, clients: int, each: int = 8, others: int = 32) -> Ranking:
    own = rng.normal(shift, 1, (clients, each)) + 0.5 * rng.normal(size=(clients, 1))
    scores = numbers(np.concatenate([own.ravel(), rng.normal(0, 1, others)]))
    holders = torch.cat([torch.arange(clients).repeat_interleave(each), torch.full((others,), -1)])
    return Ranking(holders >= 0, scores, own_clusters(holders))


@pytest.mark.parametrize("max_fpr", [1.0, 0.25])
@pytest.mark.parametrize("ties", [False, True])
def test_the_area_is_that_under_the_drawn_curve(max_fpr: float, ties: bool) -> None:
    """The other way: trapezoids under the curve, cut at the limit."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        one = ranking(rng, 0.7, 3)
        scores = (one.scores * 2).round() if ties else one.scores
        assert roc_area(Ranking(one.positive, scores, one.clusters), max_fpr) == pytest.approx(
            trapezoids(one.positive, scores, max_fpr), abs=1e-9
        )


def trapezoids(positive: Tensor, scores: Tensor, max_fpr: float) -> float:
    levels = scores.unique().flip(0)
    tpr = np.array([0.0] + [float((scores[positive] >= level).double().mean()) for level in levels])
    fpr = np.array([0.0] + [float((scores[~positive] >= level).double().mean()) for level in levels])
    # At one false positive rate the curve goes straight up: the highest point is where the next stretch starts.
    grid = np.unique(np.concatenate([fpr[fpr < max_fpr], [max_fpr]]))
    area = 0.0
    for left, right in pairwise(grid):
        start = tpr[fpr == left].max()
        later = np.flatnonzero(fpr >= right - 1e-12)[0]
        before = np.flatnonzero(fpr <= left + 1e-12)[-1]
        slope = (tpr[later] - tpr[before]) / (fpr[later] - fpr[before])
        area += (right - left) * (start + slope * (right - left) / 2)
    if max_fpr == 1:
        return area
    return 0.5 * (1 + (area - max_fpr**2 / 2) / (max_fpr - max_fpr**2 / 2))


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_areas_and_rates_are_covered_over_clients(shift: float) -> None:
    """Eight clients with eight members each, 32 records of nobody: whole area, area to 0.25, rate at 0.1."""
    big = np.random.default_rng(1)
    own, other = big.normal(shift, math.hypot(1, 0.5), 400_000), np.sort(big.normal(size=400_000))
    ahead = 1 - np.searchsorted(other, own) / 400_000
    truths = [
        float(1 - ahead.mean()),
        0.5 * (1 + (float(np.maximum(0.25 - ahead, 0).mean()) - 0.03125) / 0.21875),
        float((ahead < 0.1).mean()),
    ]
    rng, hits = np.random.default_rng(8), np.zeros(3)
    for _ in range(RUNS):
        one = [ranking(rng, shift, 8)]
        found = (measure_area(one), measure_area(one, 0.25), measure_tpr(one, 0.1))
        spans = [measured.interval() for measured in found]
        hits += [span.low <= true <= span.high for span, true in zip(spans, truths, strict=True)]
    assert hits.min() >= LEAST


def test_what_is_told_apart_wholly_has_an_area_of_one_and_an_interval() -> None:
    rng = np.random.default_rng(3)
    one = [ranking(rng, 50.0, 4)]
    for measured in (measure_area(one), measure_area(one, 0.25), measure_tpr(one, 0.1)):
        got = measured.interval()
        assert measured.mean == pytest.approx(1.0)
        assert got.high == pytest.approx(1.0)
        assert 0.2 < got.low < 0.95


def test_members_of_one_client_count_as_one() -> None:
    """The same scores, held by one client or by sixteen."""
    one = ranking(np.random.default_rng(5), 1.0, 16, each=2)
    alone = Ranking(one.positive, one.scores, torch.where(one.positive, 0, one.clusters))
    wide, narrow = (measure_area([case]).interval() for case in (alone, one))
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)


def test_few_negatives_cannot_fix_a_low_rate_of_false_alarms() -> None:
    """All 64 members above all 16 others: at 1 % false alarms that says little, at 25 % much."""
    one = [ranking(np.random.default_rng(5), 50.0, 8, others=16)]
    low, high = measure_tpr(one, 0.01).interval(), measure_tpr(one, 0.25).interval()
    assert tpr_at_fpr(one[0], 0.01) == 1.0
    assert low.low < 0.2
    assert high.low > 0.5


def test_one_kind_of_target_is_refused() -> None:
    with pytest.raises(ValueError, match="both kinds"):
        Ranking(torch.ones(3, dtype=torch.bool), torch.zeros(3), torch.arange(3))


def test_records_of_nobody_are_clusters_of_their_own() -> None:
    assert len(own_clusters(torch.tensor([0, 0, 1, -1, -1])).unique()) == 4


# Two audits


@pytest.mark.parametrize("federations", [3, 5])
@pytest.mark.parametrize("between", [0.0, 0.04])
def test_two_audits_of_one_plan_differ_rarely(between: float, federations: int) -> None:
    rng = np.random.default_rng(federations)
    pairs = [[measure_mean(drawn(rng, federations, between), SHARE) for _ in range(2)] for _ in range(RUNS)]
    assert sum(difference(*pair).p <= 0.05 for pair in pairs) <= MOST


def test_two_audits_of_one_federation_each_differ_rarely() -> None:
    rng = np.random.default_rng(9)
    pairs = [[measure_mean(drawn(rng, 1, 0.02), SHARE) for _ in range(2)] for _ in range(RUNS)]
    assert sum(difference(*pair).p <= 0.05 for pair in pairs) <= MOST


def test_a_real_difference_is_found() -> None:
    """Five federations each, four standard deviations apart: missed in fewer than one pair in ten."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(RUNS):
        before, after = (measure_mean(drawn(rng, 5, 0.02, mean), SHARE) for mean in (0.7, 0.81))
        found = difference(before, after)
        missed += not (found.p <= 0.05 and found.interval.low > 0)
    assert missed < RUNS / 10


def test_no_spread_at_all_is_judged_by_the_clients() -> None:
    ones, less = (measure_mean([Sample(torch.full((8,), v), torch.arange(8))] * 3, SHARE) for v in (1.0, 0.999))
    assert difference(ones, ones).p == 1.0
    assert difference(ones, less).p > 0.5
    assert difference(ones, OverFederations((1.0, 1.0 - 1e-16, 1.0 - 2e-16), ones.clustered, ones.ends)).p == 1.0
    zeros = measure_mean([Sample(torch.zeros(8), torch.arange(8))] * 3, SHARE)
    assert difference(ones, zeros).p < 0.001


def test_p_and_interval_agree() -> None:
    rng = np.random.default_rng(2)
    for federations in (1, 3, 5):
        for _ in range(50):
            found = difference(*(measure_mean(drawn(rng, federations, 0.03), SHARE) for _ in range(2)))
            assert (found.p <= 0.05) == (found.interval.low >= 0 or found.interval.high <= 0)


def test_many_findings_are_not_searched_for_a_change() -> None:
    rng = np.random.default_rng(3)
    assert sum(any(beyond_noise(rng.random(20).tolist())) for _ in range(RUNS)) <= MOST
    assert beyond_noise([0.04, 0.001, 0.5]) == [False, True, False]
    assert beyond_noise([]) == []


# Certificates and verdicts


def test_what_is_proven_is_sure_whatever_n() -> None:
    proof = Proof(proven=1, total=1)
    wide = interval_over_clusters(torch.ones(1), SHARE)
    assert levels(1.0, wide, 0.1).undecided
    sure = levels(1.0, wide, 0.1, proof)
    assert (sure.level, sure.least, sure.undecided) == (4, 4, False)
    assert proof.interval() == Interval(1.0, 1.0, RECORDED, 1)


def test_one_refuted_claim_ends_the_proof() -> None:
    broken = Proof(proven=9, total=10, refuted=1)
    assert (broken.holds, broken.share) == (False, 0.0)


def test_undecided_is_not_harmless() -> None:
    """0.900 [-0.169, 0.996] was "info" in version 0.1."""
    found = levels(0.9, Interval(-0.169, 0.996, CLIENTS, 5), 0.0)
    assert (found.level, found.undecided, found.borderline) == (4, True, True)


def test_a_distance_is_judged_by_its_upper_end() -> None:
    found = levels(0.1, Interval(0.0, 0.5, CLIENTS, 8), 0.8, perfect=0.0)
    assert (found.level, found.least, found.most) == (4, 2, 4)


def test_levels_change_only_with_a_real_difference() -> None:
    before, after = (
        OverFederations((v, v + 0.02, v - 0.02), Interval(v, v, CLIENTS, 24), (0, 1)) for v in (0.49, 0.51)
    )
    one, two = (levels(m.mean, m.interval(), 0.0) for m in (before, after))
    assert one.level != two.level
    assert not one.changed_to(two, difference(before, after))


def test_a_floor_guards_one_end() -> None:
    assert within_confidence(2, 0.95) == 0.95
    assert within_confidence(3, 0.95) == pytest.approx(0.9)


# Chance


def test_single_labels_are_guessed_one_time_in_ten() -> None:
    """Six batches of one label: the commonest class in hindsight is right for a third of them or more."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RUNS):
        real = torch.eye(10, dtype=torch.int64)[torch.from_numpy(rng.integers(10, size=6))]
        found.append(float(label_chance(real, torch.arange(6)).mean()))
    # Mean of 200 draws whose standard deviation is below 0.12: off by 0.03 less than once in 1,000.
    assert abs(np.mean(found) - 0.1) < 0.03
    assert even_overlap(torch.tensor([[1] + [0] * 9])).tolist() == [pytest.approx(0.1)]


@pytest.mark.parametrize(("labels", "prior"), [([0, 1, 2, 3, 3, 5], None), ([3, 3, 3, 3, 3, 5], torch.ones(10))])
def test_six_right_labels_of_batch_one_are_a_leak(labels: list[int], prior: Tensor | None) -> None:
    """In hindsight chance was 0.83, and the finding "info"; a guesser who knows the population gets 0.1."""
    real = torch.eye(10, dtype=torch.int64)[torch.tensor(labels)]
    chance = float(label_chance(real, torch.arange(6), prior).mean())
    found = levels(1.0, interval_over_clusters(torch.ones(6), SHARE), chance)
    assert chance < 0.4
    assert found.level == 4
    assert not found.undecided


def test_a_class_that_everybody_has_is_no_leak() -> None:
    real = torch.tensor([[8, 0, 0], [7, 1, 0], [8, 0, 0], [6, 1, 1]])
    assert float(label_chance(real, torch.arange(4)).mean()) > 0.85


def test_a_client_is_not_guessed_from_itself() -> None:
    shares = torch.eye(4, dtype=torch.float64)
    guessed = others_mean(shares, torch.arange(4))
    assert bool((guessed.diagonal() < guessed.sum(0) / 4).all())
    assert guessed.sum(1).tolist() == pytest.approx([1.0] * 4)


def test_rounds_of_one_client_are_left_out_together() -> None:
    shares = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    guessed = others_mean(shares, torch.tensor([0, 0, 1]))
    assert guessed[0].tolist() == guessed[1].tolist() == pytest.approx([0.25, 0.75])


def test_a_client_alone_is_guessed_by_the_prior() -> None:
    assert others_mean(torch.tensor([[1.0, 0.0]]), torch.zeros(1, dtype=torch.int64)).tolist() == [[0.5, 0.5]]
    prior = torch.tensor([0.9, 0.1])
    assert float(composition_chance(torch.tensor([[1.0, 0.0]]), torch.zeros(1, dtype=torch.int64), prior)) < 0.7


def test_a_number_of_owners_is_guessed_by_other_rounds() -> None:
    same = torch.tensor([[2, 9]] * 5)
    assert quantity_chance(same, torch.arange(5), torch.ones(5, 1)).tolist() == pytest.approx([1.0] * 5)
    rng = np.random.default_rng(0)
    wild = torch.from_numpy(rng.integers(0, 30, (6, 10)))
    assert float(quantity_chance(wild, torch.arange(6), torch.ones(6, 1)).mean()) < 0.3


def test_the_best_guess_is_chosen_by_the_others() -> None:
    """Two guesses: one is as good as the outcome itself, one always gets 0.4."""

    def tried(real: Tensor, clusters: Tensor) -> Tensor:
        return torch.stack([real[:, 0], torch.full_like(real[:, 0], 0.4)])

    outcome = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    assert chance_without_hindsight(tried, outcome, torch.arange(3)).tolist() == pytest.approx([0.4, 0.0, 0.0])
    # Nobody else to choose by: the mean of the guesses.
    assert chance_without_hindsight(tried, outcome[:1], torch.arange(1)).tolist() == pytest.approx([0.7])


# Scores


def test_a_single_value_has_no_interval() -> None:
    assert mean_interval(torch.tensor([4.0])) == (-math.inf, math.inf)


def test_equal_values_have_a_point() -> None:
    assert mean_interval(torch.full((5,), 2.0)) == (2.0, 2.0)


@final
@dataclass(frozen=True)
class Fixed(Metric[Guess]):
    """Measures what a test says."""

    name: ClassVar[str] = "fixed"
    title: ClassVar[str] = "For tests"
    guesses: ClassVar[type[Guess]] = LabelCounts
    perfect: ClassVar[float] = 1.0
    measured: Measured | None = None

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        if self.measured is None:
            raise NotScored("no truth")
        return self.measured


def score(values: Tensor, chance: Tensor, trials: Tensor | None = None) -> Score:
    guess = LabelCounts([Origin(0, "client:0")], torch.ones(1, 2, dtype=torch.int64))
    return Fixed(Measured(values, chance, trials)).score(guess, Truth({}))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_value_that_is_not_finite_makes_the_score_unscored(bad: float) -> None:
    fine = torch.tensor([0.5, 0.5])
    for values, chance in ((torch.tensor([0.5, bad]), fine), (fine, torch.tensor([bad, 0.5]))):
        for trials in (None, torch.tensor([4, 4])):
            found = score(values, chance, trials)
            assert found.status == "unscored"
            assert found.why == "a value is not finite"
            assert found.n == 2
            assert all(math.isnan(x) for x in (found.value, found.low, found.high, found.chance))


def test_a_metric_that_cannot_measure_says_why() -> None:
    guess = LabelCounts([Origin(0, "client:0")], torch.ones(1, 2, dtype=torch.int64))
    found = Fixed().score(guess, Truth({}))
    assert (found.status, found.why, found.n) == ("unscored", "no truth", 1)


def test_the_score_is_the_mean_and_lies_in_its_interval() -> None:
    found = score(torch.tensor([0.25, 0.75, 0.5]), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([4, 4, 4]))
    assert found.value == pytest.approx(0.5)
    assert found.chance == pytest.approx(0.2)
    assert 0 <= found.low < 0.5 < found.high <= 1
    assert (found.n, found.status) == (3, "ok")
