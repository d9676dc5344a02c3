"""Features of another party: rows by linear programs with certificates, equations, generators and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples, KnownSamples
from fedspill.defense import Defense
from fedspill.errors import NotApplicable
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.leaks.features.ridge_pairs import PENALTIES, best_penalty
from fedspill.leaks.features.seen.one_layer import invert_layer
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import ACTIVE_PARTY
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

SAMPLES, FEATURES = 80, 12


def rows(binary: bool = False, classes: int = 3) -> Examples:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 2 * FEATURES, generator=rng)
    if binary:
        x = (x > 1).float()
    return Examples(x, torch.randint(classes, (SAMPLES,), generator=rng))


class Recorded:
    """A federation that was trained and asked, and what the active party knows of it."""

    def __init__(
        self, *, binary: bool = False, classes: int = 3, defenses: tuple[Defense, ...] = (), secure_sum: bool = False,
        hand_over: bool = True, **model: Any,
    ) -> None:  # fmt: skip
        self.stock = rows(binary, classes)
        spec = make("models", "vertical-mlp", model)

        def build() -> VerticalNet:
            return vertical_net(spec.build((2 * FEATURES,), classes, seed=1))

        self.trace = MemoryTrace({"classes": classes})
        settings = PrivateTowerSettings(
            rounds=8, training=LocalTraining(batch_size=20, lr=0.05), predictions=60, hand_over=hand_over,
            secure_sum=secure_sum, defenses=defenses,
        )  # fmt: skip
        PrivateTowers(build(), self.stock, settings, 3, self.trace).run()
        parts = build().parts.split(self.stock.x)
        known = torch.arange(30)
        self.known: dict[str, Any] = {
            "architecture": build,
            "active_features": parts[1],
            "feature_ranges": torch.stack([parts[0].min(0).values, parts[0].max(0).values]),
            "paired_aux": KnownSamples(known, parts[0][known]),
            "defense": defenses,
        }

    def run(self, attack: str, **options: Any) -> Outcome:
        truth = self.trace.truth().beside([self.stock])
        made = make("attacks", attack, options)
        return run_attack(made, self.trace, ACTIVE_PARTY, knowledge=self.known, seed=1, truth=truth)


def test_rows_are_exact_and_certified_where_enough_units_are_on() -> None:
    score = Recorded(widths=(64,)).run("linear-program").scores["feature-rows"]
    assert score.value == 1.0
    assert score.proof is not None
    assert score.proof.proven == 60
    assert score.proof.refuted == 0


def test_sparse_rows_are_found_with_fewer_equations_than_unknowns_and_no_certificate_is_false() -> None:
    score = Recorded(binary=True, widths=(16,)).run("linear-program").scores["feature-rows"]
    assert score.value > 0.5
    assert score.proof is not None
    assert score.proof.refuted == 0
    assert 0 < score.proof.proven < 60, "some rows are the only ones, some are not"


@pytest.mark.parametrize("told", [True, False])
def test_noise_on_embeddings_ends_certificates_whether_or_not_it_is_known(told: bool) -> None:
    noisy = Recorded(widths=(12,), activation="identity", defenses=(make("defenses", "embedding-noise"),))
    if not told:
        noisy.known["defense"] = ()
    outcome = noisy.run("linear-program")
    proof = outcome.scores["feature-rows"].proof
    assert proof is not None
    assert proof.proven + proof.refuted == 0
    assert outcome.scores["feature-rows"].value < 0.5
    assert ("defense" in outcome.used) == told


def test_as_many_equations_as_unknowns_are_no_certificate() -> None:
    """With a square system every noise has a row: it must not pass for the only one."""
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(6, 6)), rng.uniform(0.4, 0.6, size=6)
    output = weight @ x + 0.01 * rng.normal(size=6)
    low, high = np.zeros(6), np.ones(6)
    square = invert_layer(weight, np.zeros(6), output, low, high, relu=False, noise=0.0, seed=0)
    more = np.concatenate([weight, rng.normal(size=(3, 6))])
    right = invert_layer(more, np.zeros(9), more @ x, low, high, relu=False, noise=0.0, seed=0)
    wrong = invert_layer(
        more, np.zeros(9), more @ x + 0.01 * rng.normal(size=9), low, high, relu=False, noise=0.0, seed=0
    )
    assert right.certain
    assert np.allclose(right.row, x, atol=1e-4)
    assert not wrong.certain
    assert np.abs(square.row - x).max() > 1e-3, "the test has something to be wrong about"
    assert not square.certain


def test_deeper_towers_and_towers_that_stay_private_are_refused() -> None:
    with pytest.raises(NotApplicable, match="more than one layer"):
        Recorded(widths=(16, 8)).run("linear-program")
    with pytest.raises(NotApplicable, match="not handed over"):
        Recorded(widths=(16,), hand_over=False).run("linear-program")


def test_equality_solving_is_exact_up_to_classes_less_one_and_not_beyond() -> None:
    for unknown, exact in ((9, True), (12, False)):
        columns = [list(range(unknown)), list(range(unknown, 2 * FEATURES))]
        recorded = Recorded(classes=10, widths=(10,), top="sum", columns=columns, secure_sum=True)
        score = recorded.run("equality-solving").scores["feature-rows"]
        assert (score.value > 0.95) == exact, unknown
    with pytest.raises(NotApplicable, match="not linear"):
        Recorded(widths=(16,)).run("equality-solving")


def test_generative_regression_finds_what_makes_the_model_say_what_it_said() -> None:
    columns = [list(range(3)), list(range(3, 2 * FEATURES))]
    recorded = Recorded(classes=10, widths=(10,), top="sum", columns=columns, secure_sum=True)
    found = recorded.run("generative-regression", steps=400, widths=[64, 32]).scores["feature-r2"]
    assert found.value > 0.3
    assert found.low > 0


def test_the_penalty_is_the_one_that_leaving_pairs_out_asks_for() -> None:
    """Held against the definition: each pair is told by a fit to all the others."""
    rng = torch.Generator().manual_seed(0)
    known = torch.randn(12, 8, generator=rng, dtype=torch.float64)
    features = known[:, :2] + 0.5 * torch.randn(12, 2, generator=rng, dtype=torch.float64)
    known, alone = (known - known.mean(0)) / known.std(0), torch.randn(12, 2, generator=rng, dtype=torch.float64)

    def missed(penalty: float, wanted: torch.Tensor) -> float:
        total = 0.0
        for place in range(len(known)):
            others = torch.arange(len(known)) != place
            x, y = known[others], wanted[others]
            gram = (x - x.mean(0)).T @ (x - x.mean(0)) + penalty * torch.eye(8, dtype=torch.float64)
            fit = torch.linalg.solve(gram, (x - x.mean(0)).T @ (y - y.mean(0)))
            total += float((wanted[place] - y.mean(0) - (known[place] - x.mean(0)) @ fit).square().sum())
        return total

    for wanted in (features, alone):
        assert best_penalty(known, wanted) == min(PENALTIES, key=lambda penalty: missed(penalty, wanted))
    assert best_penalty(known, alone) > best_penalty(known, features)


def test_pairs_teach_the_way_back_and_are_not_scored() -> None:
    outcome = Recorded(widths=(24,), activation="identity").run("ridge-pairs")
    assert outcome.scores["feature-r2"].value > 0.8
    assert outcome.scores["feature-r2"].n == 30
