"""Decaf: its solvers on federations whose compositions are known, the null test, refusal, and the pure functions."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.errors import Unfit
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.composition.decaf import Decaf
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.metrics import CompositionL1, FalseNulls, NullRecall
from fedspill.leaks.composition.shares.combined_rounds import Composition, over_rounds, rounds_of, weight_of
from fedspill.leaks.composition.shares.path_shares import hedged
from fedspill.leaks.composition.shares.published_steps import descent, null_classes, read_out
from fedspill.models.heads import last_linear
from fedspill.observe.local_changes import KnownOptimizer
from fedspill.observe.path_bases import QUADRATURE, HeadProbe, PathBases, class_mean_weights, probe_head
from fedspill.observe.path_products import products_by_samples, products_of, whitened_products
from fedspill.observe.simplex import _one_by_one, cone_fit, simplex_fit, simplex_fits
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_CLIENT, CURIOUS_SERVER
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

ROWS = ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1), (4, 0, 3, 0, 0, 2, 0, 1, 0, 0), (0, 0, 0, 5, 0, 0, 0, 0, 5, 0))


@pytest.fixture(scope="module")
def digits() -> Dataset:
    loaded: Dataset = make("datasets", "digits").load()
    return loaded


def recorded(
    digits: Dataset,
    training: LocalTraining,
    *,
    seed: int = 5,
    rounds: int = 1,
    activation: str = "relu",
    defenses: tuple[Any, ...] = (),
) -> tuple[MemoryTrace, dict[str, Any]]:
    split = make("partitions", "compositions", {"table": ROWS, "samples": 150, "reuse": True})
    shares = share_out(digits, split, len(ROWS), auxiliary=25, rng=generator(seed, "shares"))
    spec = make("models", "mlp", {"widths": [48], "activation": activation})
    build = partial(spec.build, digits.shape, 10, seed=seed)
    head = last_linear(build())
    optimizer = {"name": training.optimizer, "momentum": training.momentum, "weight_decay": training.weight_decay}
    trace = MemoryTrace({
        "classes": 10, "head_weight": head.weight, "head_bias": head.bias, "batch_size": training.batch_size,
        "local_lr": training.lr, "local_epochs": training.epochs, "optimizer": optimizer,
    })  # fmt: skip
    settings = Settings(rounds=rounds, training=training, defenses=defenses)
    Horizontal(build(), list(shares.clients), settings, seed, 10, trace).run()
    return trace, {"architecture": build, "aux_data": shares.auxiliary}


def guessed(trace: MemoryTrace, known: dict[str, Any], **options: Any) -> Proportions:
    guess = make("attacks", "decaf", options)(trace.view(CURIOUS_SERVER, knowledge=known), seed=1)
    assert isinstance(guess, Proportions)
    return guess


def error(guess: Proportions, trace: MemoryTrace) -> float:
    return CompositionL1().score(guess, trace.truth()).value


SGD = LocalTraining(lr=0.05, batch_size=16)


def test_one_step_is_linear_in_the_shares_and_read_almost_exactly(digits: Dataset) -> None:
    trace, known = recorded(digits, LocalTraining(lr=0.1, batch_size=150))
    guess = guessed(trace, known)
    assert error(guess, trace) < 0.06
    assert bool((guess.agreement > 0.95).all())


def test_ours_beats_the_published_algorithm_on_an_epoch_of_steps(digits: Dataset) -> None:
    trace, known = recorded(digits, SGD)
    paper, path, ours = (guessed(trace, known, solver=solver) for solver in ("paper", "path", "auto"))
    assert error(path, trace) < 0.6 * error(paper, trace)
    assert error(ours, trace) < 0.6 * error(paper, trace)
    assert error(paper, trace) < 0.6  # uniform gets about 1


@pytest.mark.parametrize("training", [replace(SGD, momentum=0.9, lr=0.01), replace(SGD, weight_decay=0.01)])
def test_momentum_and_weight_decay_are_taken_out(digits: Dataset, training: LocalTraining) -> None:
    trace, known = recorded(digits, training)
    for solver in ("path", "auto"):
        trace.protocol["optimizer"] = {"name": "sgd", **{o: getattr(training, o) for o in ("momentum", "weight_decay")}}
        right = error(guessed(trace, known, solver=solver), trace)
        trace.protocol["optimizer"] = "sgd"
        assert right < (0.25 if solver == "path" else 0.1)
        if solver == "path" or training.momentum:  # a decay of so few steps is next to nothing in a rehearsal
            assert right < error(guessed(trace, known, solver=solver, null_removal=False), trace)


def test_adam_is_read_from_the_bias_alone(digits: Dataset) -> None:
    trace, known = recorded(digits, LocalTraining(optimizer="adam", lr=0.001, batch_size=16))
    ours, paper = guessed(trace, known, solver="path"), guessed(trace, known, solver="paper")
    assert error(ours, trace) < error(paper, trace)


def test_adadelta_takes_the_published_bases_where_nothing_is_rehearsed(digits: Dataset) -> None:
    trace, known = recorded(digits, LocalTraining(optimizer="adadelta", lr=1.0, batch_size=16))
    path, paper, ours = (guessed(trace, known, solver=solver) for solver in ("path", "paper", "auto"))
    assert torch.equal(path.shares, paper.shares)
    assert error(ours, trace) < 0.3  # even shares get about 1
    assert "3 of 3 by rehearsal on auxiliary data" in ours.notes


def test_rehearsals_read_walks_that_turn(digits: Dataset) -> None:
    """Five epochs at a high rate: the segment between both ends says little about the way."""
    trace, known = recorded(digits, replace(SGD, epochs=5, lr=0.3))
    path, ours = guessed(trace, known, solver="path"), guessed(trace, known)
    assert error(ours, trace) < 0.8 * error(path, trace)
    assert torch.equal(ours.shares, guessed(trace, known).shares)  # the same seed, the same rehearsals


def test_noise_is_unlike_any_rehearsal_and_left_to_the_path(digits: Dataset) -> None:
    trace, known = recorded(digits, SGD, defenses=(ClipNoise(clip=None, sigma=5.0),))
    path, ours = guessed(trace, known, solver="path"), guessed(trace, known)
    assert torch.equal(path.shares, ours.shares)
    assert any("nothing like their rehearsals" in note for note in ours.notes)


def test_what_is_explained_or_cannot_be_rehearsed_is_left_to_the_path(digits: Dataset) -> None:
    trace, known = recorded(digits, replace(SGD, lr=0.01))  # short walks: samples' own noise is all that is left
    assert not any("rehearsal" in note for note in guessed(trace, known).notes)
    trace, known = recorded(digits, replace(SGD, epochs=5, lr=0.3))
    path = guessed(trace, known, solver="path").shares
    assert not torch.equal(guessed(trace, known).shares, path)
    messages = list(trace.messages())
    long = [replace(m, info={**m.info, "examples": 10**9}) if m.kind == "update" else m for m in messages]
    assert not any("by rehearsal" in note for note in guessed(MemoryTrace.of(long, trace.protocol), known).notes)
    trace.protocol["optimizer"] = "rmsprop"  # not one of ours: read as SGD, and never rehearsed
    assert torch.equal(guessed(trace, known).shares, path)


@pytest.mark.parametrize("epochs", [1, 4])
def test_every_absent_class_is_found_where_the_theorem_holds(digits: Dataset, epochs: int) -> None:
    trace, known = recorded(digits, replace(SGD, epochs=epochs))
    for guess in (guessed(trace, known), guessed(trace, known, solver="paper")):
        assert NullRecall().score(guess, trace.truth()).value == 1
        assert FalseNulls().score(guess, trace.truth()).value <= 0.1
    assert any("sign theorem" in note for note in guessed(trace, known).notes)


def test_exactness_is_not_claimed_for_other_features_or_decay(digits: Dataset) -> None:
    for training, activation in ((SGD, "leaky-relu"), (replace(SGD, weight_decay=0.001), "relu")):
        trace, known = recorded(digits, training, activation=activation)
        guess = guessed(trace, known)
        assert any("heuristic" in note for note in guess.notes)
        assert NullRecall().score(guess, trace.truth()).value >= 0.95


def test_pure_noise_is_not_answered(digits: Dataset) -> None:
    trace, known = recorded(digits, SGD, defenses=(ClipNoise(clip=None, sigma=5.0),))
    guess = guessed(trace, known, least_agreement=0.3)
    assert not bool(guess.answered.any())
    assert CompositionL1().score(guess, trace.truth()).status == "unscored"


def test_rounds_are_joined_for_each_client_and_every_message_has_an_answer(digits: Dataset) -> None:
    trace, known = recorded(digits, SGD, rounds=3)
    joined, single = guessed(trace, known), guessed(trace, known, rounds="single")
    assert joined.of == single.of
    assert len(joined.of) == 9
    for client in range(3):
        rows = [i for i, origin in enumerate(joined.of) if origin.sender == f"client:{client}"]
        assert all(torch.equal(joined.shares[i], joined.shares[rows[0]]) for i in rows)
    assert error(joined, trace) <= error(single, trace)


def test_a_thousand_clients_are_decomposed_in_one_call(digits: Dataset) -> None:
    trace, known = recorded(digits, LocalTraining(lr=0.1, batch_size=150))
    model, *updates = (m for m in trace.messages() if m.kind in ("model", "update"))
    many = [replace(updates[k % 3], sender=f"client:{k}") for k in range(1000)]
    guess = guessed(MemoryTrace.of([model, *many], trace.protocol), known, points=1)
    assert guess.shares.shape == (1000, 10)
    assert torch.allclose(guess.shares[0], guess.shares[999], atol=1e-9)


def test_a_curious_client_cannot_run_it(digits: Dataset) -> None:
    trace, known = recorded(digits, SGD)
    with pytest.raises(Unfit, match="update"):
        Decaf()(trace.view(CURIOUS_CLIENT, me="client:0", knowledge=known), seed=1)


def test_algorithm_1_is_its_loop() -> None:
    change = torch.tensor([[-1.0, 0.0, -2.0], [-1.0, 0.5, -3.0], [-1.0, 0.0005, -1.0]])
    assert null_classes(change, 0.0).tolist() == [True, False, False]
    assert null_classes(change, 0.001).tolist() == [True, False, True]


def test_descent_reaches_the_constrained_least_squares_solution() -> None:
    rng = torch.Generator().manual_seed(0)
    bases = torch.randn(4, 40, generator=rng, dtype=torch.float64)
    target = torch.tensor([0.7, 0.0, 0.2, -0.3], dtype=torch.float64) @ bases
    columns = torch.cat([bases, target[None]])
    exact, agreement = cone_fit(columns @ columns.T)
    assert torch.allclose(descent(bases, target, 3000, 1.0), exact, atol=1e-6)
    assert 0 < agreement < 1


def test_the_two_readings_of_equation_21() -> None:
    factors, calibrator = torch.tensor([3.0, 1.0]), torch.tensor(2.0)
    assert read_out(factors, calibrator, "sum").tolist() == [5 / 8, 3 / 8]
    assert read_out(factors, calibrator, "share").tolist() == pytest.approx([4 / 6, 2 / 6])
    assert read_out(factors, None, "sum").tolist() == [0.75, 0.25]


def test_the_simplex_fit_recovers_shares_and_keeps_to_what_is_allowed() -> None:
    rng = torch.Generator().manual_seed(1)
    bases = torch.randn(5, 60, generator=rng, dtype=torch.float64)
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0], dtype=torch.float64)
    columns = torch.cat([bases, (shares @ bases)[None]])
    found, agreement = simplex_fit(columns @ columns.T, torch.ones(5, dtype=torch.bool))
    assert torch.allclose(found, shares, atol=1e-6)
    assert agreement > 1 - 1e-6
    found, _ = simplex_fit(columns @ columns.T, torch.tensor([False, True, True, True, True]))
    assert float(found[0]) == 0
    assert float(found.sum()) == pytest.approx(1)


def test_whitened_inner_products_equal_the_dense_inverse() -> None:
    rng = torch.Generator().manual_seed(2)
    features, labels = torch.rand(12, 4, generator=rng, dtype=torch.float64), torch.arange(12) % 3
    errors = torch.randn(12, 3, generator=rng, dtype=torch.float64)
    probe, shares = HeadProbe(features, errors, labels), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    columns = torch.randn(4, 3, 4, generator=rng, dtype=torch.float64)
    samples = torch.einsum("no,nf->nof", errors, features).flatten(1)
    centred = samples - (class_mean_weights(labels, 3) @ samples)[labels]
    covariance: Tensor = (centred * (shares[labels] / 4)[:, None]).T @ centred
    covariance = covariance + 0.1 * covariance.trace() / 12 * torch.eye(12)
    dense = columns.flatten(1) @ torch.linalg.solve(covariance, columns.flatten(1).T)
    assert torch.allclose(whitened_products(columns, probe, shares, 0.1), dense, rtol=1e-6)


def test_whitened_products_are_the_same_whether_bases_are_formed_or_only_samples_multiplied() -> None:
    rng = torch.Generator().manual_seed(3)
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 0, 3, 1, 2])  # one class has a single sample, which scatters about nothing

    def probe() -> HeadProbe:
        features, errors = (torch.randn(10, 4, generator=rng, dtype=torch.float64) for _ in range(2))
        return HeadProbe(torch.cat([features, torch.ones(10, 1, dtype=torch.float64)], 1), errors, labels)

    sent = torch.randn(4, 5, generator=rng, dtype=torch.float64)
    for points in (1, 2, 3, 5):
        bases = PathBases(4, tuple(probe() for _ in range(points)), QUADRATURE[points][1])
        formed = products_of(torch.cat([bases.gradients, sent[None]]), bases.middle, 4)
        for shares in ([0.25] * 4, [0.7, 0.0, 0.2, 0.1]):
            mixture = torch.tensor(shares, dtype=torch.float64)
            dense, found = formed.at(mixture, 0.01), products_by_samples(bases, sent).at(mixture, 0.01)
            assert torch.allclose(found, dense, rtol=0, atol=1e-9 * float(dense.abs().max()))
        assert torch.allclose(bases.bias_gradients, bases.gradients[:, :, -1])


def test_three_and_five_points_average_a_polynomial_of_degree_five_exactly() -> None:
    for points in (3, 5):
        positions, weights = QUADRATURE[points]
        found = sum(weight * position**5 for position, weight in zip(positions, weights, strict=True))
        assert found == pytest.approx(1 / 6, abs=1e-12)


def test_momentum_counts_as_more_steps() -> None:
    assert KnownOptimizer().unit_steps(7) == 7
    velocity, moved = 0.0, 0.0
    for _ in range(7):
        velocity = 0.9 * velocity + 1
        moved += velocity
    assert KnownOptimizer(momentum=0.9).unit_steps(7) == pytest.approx(moved)


def test_a_round_that_agrees_outweighs_one_that_does_not() -> None:
    good = Composition(
        torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([False, True]), 0.99, weight_of(0.99)
    )
    bad = Composition(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([True, False]), 0.3, weight_of(0.3))
    joined = over_rounds([good, bad], exact=False)
    assert float(joined.shares[0]) > 0.99
    assert joined.null.tolist() == [False, True]
    assert over_rounds([good, bad], exact=True).null.tolist() == [False, False]  # each was seen once
    assert rounds_of(["a", "b", "a"], "all") == [[0, 2], [1]]
    assert rounds_of(["a", "b", "a"], "single") == [[0], [1], [2]]


def test_many_fits_at_once_are_those_of_one_at_a_time() -> None:
    """Block pivoting against Lawson and Hanson: same shares, no larger error, on problems with more and fewer rows."""
    rng = torch.Generator().manual_seed(4)
    for classes, rows in ((10, 200), (10, 12), (30, 100)):
        columns = torch.rand(40, 1, rows, generator=rng, dtype=torch.float64)
        columns = columns + torch.randn(40, classes, rows, generator=rng, dtype=torch.float64)
        shares = torch.rand(40, classes, generator=rng, dtype=torch.float64) ** 4
        target = (shares / shares.sum(1, keepdim=True))[:, None] @ columns
        target = target + 0.5 * torch.randn(40, 1, rows, generator=rng, dtype=torch.float64)
        table = torch.cat([columns, target], 1)
        products = table @ table.mT
        allowed = torch.rand(40, classes, generator=rng) > 0.3
        allowed[:, 0] = True
        found, agreement = simplex_fits(products, allowed)
        assert torch.allclose(found.sum(1), torch.ones(40, dtype=torch.float64))
        assert bool((found >= 0).all())
        assert not bool(found[~allowed].any())
        for index in range(40):
            wanted = _one_by_one(products[index].numpy(), np.flatnonzero(allowed[index].numpy()))
            assert np.abs(found[index].numpy() - wanted).max() < 1e-6
        fit = (found[:, None] @ columns)[:, 0]
        assert torch.allclose(agreement, torch.cosine_similarity(fit, target[:, 0]).clamp_min(0))


def test_odd_fits() -> None:
    nothing = simplex_fits(torch.eye(4)[None], torch.zeros(1, 3, dtype=torch.bool))
    assert nothing[0].tolist() == [[1 / 3] * 3]
    assert float(nothing[1]) == 0
    same = torch.ones(1, 4, 4, dtype=torch.float64)  # every column is the target
    shares, agreement = simplex_fits(same, torch.ones(1, 3, dtype=torch.bool))
    assert float(shares.sum()) == pytest.approx(1)
    assert float(agreement) == pytest.approx(1)
    zero, agreement = simplex_fits(torch.zeros(1, 4, 4), torch.ones(1, 3, dtype=torch.bool))
    assert float(zero.sum()) == pytest.approx(1)
    assert float(agreement) == 0


def test_a_fit_that_explains_nothing_gives_way_to_even_shares() -> None:
    shares, allowed = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([True, True, False])
    assert hedged(shares, allowed, 0.0).tolist() == [0.5, 0.5, 0.0]
    assert hedged(shares, allowed, 0.999).tolist() == [1.0, 0.0, 0.0]
    assert 0.5 < float(hedged(shares, allowed, 0.3)[0]) < float(hedged(shares, allowed, 0.9)[0]) < 1.0


def test_a_last_layer_without_bias_has_no_bias_gradient() -> None:
    examples = Examples(torch.randn(6, 3), torch.arange(6) % 2)
    for bias in (True, False):
        probe = probe_head(torch.nn.Sequential(torch.nn.Linear(3, 2, bias=bias)), "0.weight", examples)
        assert bool(probe.class_gradients(2)[:, :, -1].any()) is bias
