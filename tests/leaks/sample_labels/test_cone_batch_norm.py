"""Batch norms in the head: seen by what they do, undone by the party's own embeddings, and where that ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples, KnownSamples
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.leaks.sample_labels.received.batch_norm import balanced, kinked_lines
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import CURIOUS_PARTY
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

WIDTH = 16  # of what both towers put out


def rows(classes: int) -> Examples:
    """Three in four samples are of the first class, so that zero is not where the classes part."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (300,), generator=rng) * (torch.rand(300, generator=rng) < 0.5)
    centres = 2 * torch.randn(classes, 12, generator=torch.Generator().manual_seed(5))
    return Examples(centres[y] + torch.randn(300, 12, generator=rng), y)


def cone_behind(neck: Callable[[], nn.Module], classes: int, activation: str = "relu") -> Outcome:
    def network() -> VerticalNet:
        made = make("models", "vertical-mlp", {"widths": (16, 8), "activation": activation})
        net = vertical_net(made.build((12,), classes, seed=1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net.neck = neck()
        return net

    stock, trace = rows(classes), MemoryTrace({"classes": classes})
    settings = PrivateTowerSettings(rounds=40, training=LocalTraining(optimizer="adam", lr=0.01, batch_size=30))
    PrivateTowers(network(), stock, settings, 3, trace).run()
    chosen = torch.cat([(stock.y == label).nonzero().flatten()[:1] for label in range(classes)])
    known = {
        "few_labels": KnownSamples(chosen, stock.y[chosen]),
        "class_prior": torch.bincount(stock.y, minlength=classes).double() / len(stock),
    }
    truth = trace.truth().beside([stock])
    return run_attack(make("attacks", "cone"), trace, CURIOUS_PARTY, knowledge=known, seed=1, truth=truth)


def notes(outcome: Outcome) -> str:
    return " ".join(outcome.guess.notes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("neck", "classes", "activation"),
    [
        (lambda: nn.BatchNorm1d(WIDTH), 2, "relu"),
        (lambda: nn.BatchNorm1d(WIDTH), 4, "relu"),
        # Towers that end in a ReLU put out many zeros, one point of a line: batches of 30 have too few others.
        (lambda: nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)), 2, "tanh"),
    ],
    ids=["two classes", "four classes", "a ReLU follows"],
)
def test_a_norm_at_the_beginning_of_the_head_is_undone(
    neck: Callable[[], nn.Module], classes: int, activation: str
) -> None:
    outcome = cone_behind(neck, classes, activation)
    assert "a batch norm undone" in notes(outcome)
    assert outcome.scores["sample-label-accuracy"].value >= 0.95


def test_a_norm_behind_other_layers_is_seen_and_left_alone() -> None:
    deep = cone_behind(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()), 2)
    assert "deep in the head" in notes(deep)
    assert "batch norm" not in notes(cone_behind(lambda: nn.Linear(WIDTH, WIDTH), 2))


def test_samples_below_the_kink_tell_the_line_from_either_end_and_ties_do_not() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, generator=rng, dtype=torch.float64)
    x[:10, 2] = float(x[:, 2].min())  # ten alike are one point
    line = torch.tensor([0.3, -0.2, 0.1]) + torch.tensor([0.5, 0.4, -0.7]) * x
    above = torch.stack([x[:, 0] > 0, x[:, 1] < 0, x[:, 2] > x[0, 2]], 1)
    truth = torch.where(above, torch.randn(32, 3, generator=rng, dtype=torch.float64), 0.0)
    found, there = kinked_lines(x, truth + line)
    assert there.tolist() == [True, True, False]
    assert torch.allclose((truth + line - found)[:, :2], truth[:, :2], atol=1e-6)


def test_balanced_scores_say_each_class_as_often_as_it_is_common() -> None:
    scores = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    shares = torch.bincount(balanced(scores, prior).argmax(1), minlength=3) / 1000
    assert torch.allclose(shares.double(), prior, atol=0.02)
