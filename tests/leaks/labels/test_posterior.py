"""Posterior, lattice and Bayes: exact where exactness is known, consistent with brute force where it is small."""

import itertools

import pytest
import torch
from torch import Tensor

from fedspill.leaks.labels.counts.factorised_bayes import bayes_counts, hardness
from fedspill.leaks.labels.counts.lattice import fit
from fedspill.leaks.labels.counts.posterior import (
    CountGrid,
    apportioned,
    best_tails,
    certainty,
    decide,
    posterior,
    rounded_means,
)
from fedspill.leaks.labels.counts.readings import read
from fedspill.leaks.labels.counts.whole_counts import Steps, decoded
from fedspill.observe.probe import ModelAnswers
from fedspill.training import Schedule


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unbalanced(classes: int, samples: int, number: int, seed: int) -> Tensor:
    """True counts (number, classes): half of one class, a quarter of another, the rest of any."""
    made = torch.zeros(number, classes, dtype=torch.int64)
    for row in made:
        a, b = torch.randint(classes, (2,), generator=rng(seed)).tolist()
        labels = torch.randint(classes, (samples - samples // 2 - samples // 4,), generator=rng(seed + 1))
        row += torch.bincount(labels, minlength=classes)
        row[a] += samples // 2
        row[b] += samples // 4
        seed += 2
    return made


def table_of(classes: int, samples: int, seed: int) -> tuple[Tensor, CountGrid]:
    grid = CountGrid.around(torch.zeros(1, classes), torch.full((1, classes), float(samples)), samples)
    return 2 * torch.randn(1, classes, samples + 1, generator=rng(seed), dtype=torch.float64), grid


@pytest.mark.parametrize("seed", range(5))
def test_marginals_are_close_to_those_of_brute_force(seed: int) -> None:
    """Of the even prior; the sum over the other classes is taken as normal, so close is all that can be asked."""
    classes, samples = 5, 8
    _, grid = table_of(classes, samples, seed)
    table = -0.3 * (grid.counts - 3 * torch.rand(1, classes, 1, generator=rng(seed), dtype=torch.float64)).square()
    found = posterior(table, grid, samples, torch.arange(4) == 0)  # the even prior alone: multinomial
    exact = torch.zeros(classes, samples + 1, dtype=torch.float64)
    for counts in itertools.product(range(samples + 1), repeat=classes):
        if sum(counts) == samples:
            weight = sum(float(table[0, c, k] - torch.lgamma(torch.tensor(k + 1.0))) for c, k in enumerate(counts))
            for c, k in enumerate(counts):
                exact[c, k] += torch.tensor(weight).exp().double()
    exact /= exact.sum(1, keepdim=True)
    assert float((found.marginals[0] - exact).abs().max()) < 0.05
    assert torch.allclose(found.marginals.sum(2), torch.ones(1, classes, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_tails_are_the_best(seed: int) -> None:
    """No other counts of the same sum have a larger expected overlap, by brute force."""
    classes, samples = 4, 6
    table, grid = table_of(classes, samples, seed)
    found = posterior(table, grid, samples)
    chosen = best_tails(found)
    tails = found.marginals[0].flip(1).cumsum(1).flip(1)

    def overlap(counts: tuple[int, ...]) -> float:
        return sum(float(tails[c, 1 : k + 1].sum()) for c, k in enumerate(counts))

    best = max(overlap(c) for c in itertools.product(range(samples + 1), repeat=classes) if sum(c) == samples)
    assert overlap(tuple(chosen[0].tolist())) == pytest.approx(best)
    _, expected = certainty(found, chosen)
    assert float(expected) == pytest.approx(best / samples)


@pytest.mark.parametrize(("classes", "samples"), [(1, 1), (2, 1), (10, 128), (1000, 3), (3, 4096), (1000, 4096)])
def test_decisions_add_up_for_any_size(classes: int, samples: int) -> None:
    amounts = torch.rand(3, classes, generator=rng(0), dtype=torch.float64)
    amounts = amounts * samples / amounts.sum(1, keepdim=True)
    found = decoded(amounts, Steps.of(Schedule(samples, samples)))
    for counts in (decide(found), best_tails(found), rounded_means(found), apportioned(amounts, samples)):
        assert counts.sum(1).tolist() == [samples] * 3
        assert int(counts.min()) >= 0


def test_wide_grids_keep_the_mean() -> None:
    """With a stride above 1 the posterior of a broad likelihood stays where it is."""
    middle = torch.tensor([[3000.0, 900.0, 196.0]], dtype=torch.float64)
    grid = CountGrid.around(middle - 500, middle + 500, 4096)
    assert int(grid.stride.max()) > 1
    table = -0.5 * ((grid.counts - middle[..., None]) / 60).square()
    found = posterior(table, grid, 4096)
    assert torch.allclose(found.mean, middle, atol=40)


@pytest.mark.parametrize(("violent", "time"), [(False, 6.5), (True, 8.6)])
def test_the_lattice_finds_the_drift(violent: bool, time: float) -> None:
    classes, samples = 100, 130
    steps = Steps.of(Schedule(samples, 13))
    true = unbalanced(classes, samples, 8, seed=5)
    start = (0.3 * torch.randn(8, classes, generator=rng(1), dtype=torch.float64)).softmax(1)
    end = (0.8 * torch.randn(8, classes, generator=rng(2), dtype=torch.float64)).softmax(1)
    summed = start + time * end if violent else time * start
    major = true > 10  # they take what is left of the ten steps' probability
    bias = summed - true / 13 + major * (10 - summed.sum(1, keepdim=True)) / major.sum(1, keepdim=True)
    found = fit(bias, start, end, steps)
    assert bool((found.violent == violent).all())
    assert bool((found.score < 0.03 * classes).all())
    small = found.small
    assert bool((found.amounts.round()[small] == true.double()[small]).all())


def drifted(true: torch.Tensor, drawn: float, time: float = 6.5) -> tuple[torch.Tensor, ModelAnswers, torch.Tensor]:
    """Bias sums where a class of one sample drew so much probability, the outlook, and which class it is."""
    rows = torch.arange(len(true))
    single = (true == 1).double().argmax(1)
    start = (0.3 * torch.randn(true.shape, generator=rng(1), dtype=torch.float64)).softmax(1)
    bias = time * start - true / 13
    bias[rows, single] += drawn / 13
    major = true > 10
    bias = bias - major * bias.sum(1, keepdim=True) / major.sum(1, keepdim=True)
    return bias, ModelAnswers(start, torch.zeros_like(start), 64, end=start.clone()), single


def test_a_rare_class_that_led_for_some_steps_is_still_seen() -> None:
    """It draws probability for the steps that follow, and reads as less than none."""
    true = unbalanced(100, 130, 6, seed=5)
    bias, seen, single = drifted(true, 4.0)
    found = read(bias, Steps.of(Schedule(130, 13)), seen).each_alone()
    assert set(found.routes) == {"lattice"}
    assert found.counts[torch.arange(6), single].tolist() == [1] * 6
    assert bool((found.counts[true == 0] == 0).all())


def test_one_major_class_that_led_takes_what_is_left() -> None:
    """It reads as less than none, and there is nobody else: not the absent ones."""
    true = torch.ones(1, 100, dtype=torch.int64)
    true[0, 40:], true[0, 99] = 0, 90
    start = torch.full((1, 100), 0.01, dtype=torch.float64)
    bias = 4 * start - true / 13
    bias[0, 99] = 1.0
    found = read(
        bias, Steps.of(Schedule(130, 13)), ModelAnswers(start, torch.zeros_like(start), 64, end=start.clone())
    ).each_alone()
    assert found.routes == ("lattice",)
    assert found.counts.tolist() == true.tolist()


def test_a_class_that_led_beside_one_major_class_is_in_doubt() -> None:
    """It may be a second major class that drew all it pushed; beside two of them that is unlikely."""
    true = torch.ones(2, 100, dtype=torch.int64)
    true[:, 40:] = 0
    true[0, 98], true[1, 98], true[1, 99] = 90, 60, 30
    bias, seen, _ = drifted(true, 6.0)
    calm, _, _ = drifted(true, 0.0)
    steps = Steps.of(Schedule(130, 13))
    unsure, sure = read(bias, steps, seen).each_alone().expected, read(calm, steps, seen).each_alone().expected
    assert float(unsure[0]) < float(sure[0]) - 0.03
    assert float(unsure[1]) > float(sure[1]) - 0.03


def test_major_classes_get_at_least_what_they_read_as() -> None:
    """With T so large that every class reads as one more, there would be nothing left for the others."""
    true = unbalanced(100, 130, 6, seed=5)
    start = torch.full((6, 100), 0.01, dtype=torch.float64)
    found = fit(2.3 * start - true / 13, start, start, Steps.of(Schedule(130, 13)))
    left = 130 - (found.amounts.round() * found.small).sum(1)
    assert bool((left >= 0.8 * (found.amounts * ~found.small).sum(1)).all())
    assert bool((found.time < 4).all())


def test_an_untrained_model_is_read_exactly_without_any_auxiliary_data() -> None:
    true = unbalanced(100, 128, 10, seed=3)
    bias = torch.full((10, 100), 0.01, dtype=torch.float64) - true / 128
    reading = read(bias, Steps.of(Schedule(128, 128)), None).each_alone()
    assert reading.counts.tolist() == true.tolist()
    assert float(reading.expected.min()) > 0.99


@pytest.mark.parametrize("even", [True, False])
def test_bayes_beats_both_even_and_proportional_guesses(even: bool) -> None:
    """A model of 20 classes whose samples lose between 0 and all of their probability, half of it to one neighbour."""
    classes, samples, number = 20, 128, 20
    confusion, second, draw_one = toy_model(classes)
    generator = rng(4)
    if even:
        labels = [torch.randint(classes, (samples,), generator=generator) for _ in range(number)]
        true = torch.stack([torch.bincount(each, minlength=classes) for each in labels])
    else:
        true = unbalanced(classes, samples, number, seed=21)
    pushed = torch.stack([draw_one(row, generator) for row in true])
    model = hardness(confusion.expand(number, -1, -1), second.expand(number, -1), 1000.0)
    from fedspill.leaks.labels.ebi import ebi_counts

    first = ebi_counts(-pushed, torch.full((number,), samples))
    found = bayes_counts(pushed, model, samples, first)
    counts = decide(found)

    def success(guess: Tensor) -> float:
        return float(torch.minimum(guess, true).sum() / true.sum())

    flat = torch.full_like(true, samples // classes)
    assert success(counts) > max(success(first), success(flat))
    _, expected = certainty(found, counts)
    assert abs(float(expected.mean()) - success(counts)) < 0.1


def toy_model(classes: int):  # type: ignore[no-untyped-def]
    hard = torch.linspace(0.2, 0.7, classes, dtype=torch.float64)
    flow = 0.5 * torch.eye(classes, dtype=torch.float64).roll(1, 1) + 0.5 / classes
    flow = flow * (1 - torch.eye(classes, dtype=torch.float64))
    flow = flow / flow.sum(1, keepdim=True)
    confusion = hard[:, None] * flow + torch.diag(1 - hard)
    second = hard.square() + hard * (1 - hard) / 3

    def draw_one(counts: Tensor, generator: torch.Generator) -> Tensor:
        """y of one batch: each sample's loss is Beta distributed with that mean and variance hard (1 - hard) / 3."""
        pushed = torch.zeros(classes, dtype=torch.float64)
        for label in torch.repeat_interleave(counts).tolist():
            high = torch.rand((), generator=generator, dtype=torch.float64) < hard[label]
            lost = (hard[label] + (0.58 if high else -0.58) * (1 - hard[label] if high else hard[label])).clamp(0, 1)
            pushed[label] += lost
            pushed -= lost * flow[label]
        return pushed

    return confusion, second, draw_one


def test_the_reading_whose_assumption_holds_has_most_evidence() -> None:
    """What was sent is made by one assumption after the other; each time the reading that makes it is believed."""
    steps, classes = Steps.of(Schedule(130, 13)), 100
    true = unbalanced(classes, 130, 4, seed=30)
    start = torch.full((4, classes), 0.01, dtype=torch.float64)
    zeros = torch.zeros_like(start)
    calm, slowed = 10 * start - true / 13, 7 * start - true / 13
    fresh = ModelAnswers(start, zeros, 64, end=start)
    assert set(read(calm, steps, None).each_alone().routes) == {"measured"}
    assert set(read(calm, steps, fresh).each_alone().routes) == {"measured"}
    assert set(read(slowed, steps, None).each_alone().routes) == {"lattice"}
    assert set(read(slowed, steps, fresh).each_alone().routes) == {"lattice"}
    assert set(read(calm, steps, None, plain=False).each_alone().routes) == {"ebi"}


@pytest.mark.parametrize("labelled", [True, False])
def test_a_trained_model_is_told_from_a_fresh_one_by_what_was_sent(labelled: bool) -> None:
    classes, samples = 20, 128
    confusion, second, draw_one = toy_model(classes)
    true = unbalanced(classes, samples, 6, seed=21)
    generator = rng(4)
    bias = -torch.stack([draw_one(row, generator) for row in true]) / samples
    start, spread = confusion.mean(0).expand(6, -1), confusion.var(0).expand(6, -1)
    answers = ModelAnswers(start, spread, 1000)
    if labelled:
        answers = ModelAnswers(
            start, spread, 1000, start_confusion=confusion.expand(6, -1, -1),
            start_second=second.expand(6, -1), per_class=50.0,
        )  # fmt: skip
    assert set(read(bias, Steps.of(Schedule(samples, samples)), answers).each_alone().routes) == {
        "bayes" if labelled else "unaided"
    }


@pytest.mark.parametrize(("samples", "step"), [(128, 13), (256, 26), (512, 52), (1024, 103)])
def test_large_batches_without_drift_are_not_mistaken_for_drift(samples: int, step: int) -> None:
    """Where most classes have samples, one less of each fits a lattice too: no drift comes first."""
    schedule, classes = Schedule(samples, step), 100
    generator = rng(41)
    labels = torch.randint(classes, (3, samples), generator=generator)
    labels[:, : min(samples // 2, 100)] = 7
    labels = labels[:, torch.randperm(samples, generator=generator)]
    bias = torch.zeros(3, classes, dtype=torch.float64)
    at = 0
    for size in schedule.sizes():
        here = labels[:, at : at + size]
        bias += 1 / classes - torch.stack([torch.bincount(row, minlength=classes) for row in here]) / size
        at += size
    true = torch.stack([torch.bincount(row, minlength=classes) for row in labels])
    assert torch.equal(read(bias, Steps.of(schedule), None).each_alone().counts, true)


def test_a_class_whose_probability_was_measured_badly_does_not_decide() -> None:
    schedule, classes = Schedule(128, 128), 100
    true = unbalanced(classes, 128, 6, seed=43)
    start = torch.full((6, classes), 1e-4, dtype=torch.float64)
    start[:, :2] = 0.495
    bias = start - true / 128
    off = torch.zeros(classes, dtype=torch.float64)
    off[0], off[1] = 4.1 / 128, -4.1 / 128
    reading = read(bias + off, Steps.of(schedule), ModelAnswers(start, (start * 0.1).square(), 64)).each_alone()
    assert set(reading.routes) == {"measured"}
    assert bool((torch.minimum(reading.counts, true).sum(1) >= 0.95 * 128).all())


def test_numbers_that_are_whole_by_chance_alone_are_no_lattice() -> None:
    """A trained model of a hundred classes: amounts are anything, and some time makes a few of them nearly whole."""
    steps, classes, batches = Steps(400, 12, 33.0, 0), 100, 12
    start = torch.full((batches, classes), 1 / classes, dtype=torch.float64)
    counts = unbalanced(classes, 400, batches, 90).double()
    whole = steps.number * start - counts / steps.unit
    smeared = whole + torch.rand(batches, classes, generator=rng(91), dtype=torch.float64) / steps.unit
    assert bool(fit(whole, start, None, steps).stands_out().all())
    assert float(fit(smeared, start, None, steps).stands_out().double().mean()) < 0.2
