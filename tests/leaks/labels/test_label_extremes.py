"""The labels attack at the ends of its range: one sample, thousands, one class, every class once, 1,000 classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.models.heads import last_linear
from fedspill.models.mlp import Mlp
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining


def attacked(labels: list[Tensor], classes: int, training: LocalTraining) -> tuple[LabelCounts, Tensor]:
    """The guess and the share of labels recovered (clients,), on noise images whose mean differs by class."""
    rng = generator(11, "images")
    centre = torch.rand(classes, 36, generator=rng)
    clients = [
        Examples((centre[y] + 0.3 * torch.randn(len(y), 36, generator=rng)).view(-1, 1, 6, 6), y) for y in labels
    ]
    model = Mlp(widths=(64,)).build((1, 6, 6), classes, seed=2)
    head = last_linear(model)
    protocol = {
        "classes": classes, "head_weight": head.weight, "head_bias": head.bias, "batch_size": training.batch_size,
        "local_lr": training.lr, "local_epochs": training.epochs, "optimizer": "sgd",
    }  # fmt: skip
    trace = MemoryTrace(protocol)
    Horizontal(model, clients, Settings(rounds=1, training=training), 5, classes, trace).run()
    auxiliary = centre[torch.randint(classes, (200,), generator=rng)] + 0.3 * torch.randn(200, 36, generator=rng)
    known = {"architecture": lambda: model, "unlabelled_aux": auxiliary.view(-1, 1, 6, 6)}
    guess = Labels()(trace.view(CURIOUS_SERVER, knowledge=known), seed=1)
    assert isinstance(guess, LabelCounts)
    return guess, overlap(guess.counts, true_counts(guess, trace.truth()))


def drawn(clients: int, size: int, classes: int) -> list[Tensor]:
    rng = generator(3, "labels")
    return [torch.randint(classes, (size,), generator=rng) for _ in range(clients)]


WHOLE = LocalTraining(algorithm="fedsgd", batch_size=4096)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_one_sample(classes: int) -> None:
    _, rate = attacked(drawn(6, 1, classes), classes, LocalTraining(algorithm="fedsgd", batch_size=1))
    assert float(rate.min()) == 1


def test_four_thousand_samples_in_one_step() -> None:
    guess, rate = attacked(drawn(3, 4096, 100), 100, WHOLE)
    assert float(rate.mean()) > 0.97
    assert guess.confidence is not None
    assert abs(float(guess.confidence.mean() - rate.mean())) < 0.05


@pytest.mark.slow
def test_a_thousand_classes() -> None:
    _, rate = attacked(drawn(4, 256, 1000), 1000, LocalTraining(algorithm="fedsgd", batch_size=256))
    assert float(rate.mean()) > 0.95


@pytest.mark.parametrize("training", [WHOLE, LocalTraining(lr=0.001, batch_size=16)], ids=["fedsgd", "fedavg"])
def test_all_samples_of_one_class(training: LocalTraining) -> None:
    _, rate = attacked([torch.full((64,), c) for c in (0, 3, 9)], 10, training)
    assert float(rate.min()) == 1


@pytest.mark.parametrize("training", [WHOLE, LocalTraining(lr=0.001, batch_size=25)], ids=["fedsgd", "fedavg"])
def test_every_class_once(training: LocalTraining) -> None:
    _, rate = attacked([torch.randperm(100, generator=generator(k, "order")) for k in range(4)], 100, training)
    assert float(rate.mean()) > 0.95
