"""The labels attack on federations of real digits: what it recovers, what it says of itself, and that it says so."""

from typing import Any

import pytest
import torch
from torch import nn

from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.models.heads import last_linear
from fedspill.models.mlp import Mlp
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_SERVER, CURIOUS_SERVER_SECAGG, EAVESDROPPER, ThreatModel
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

CLASSES = 10


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Digits().load().train


def network(last_bias: bool = True) -> nn.Module:
    return Mlp(widths=(64,), last_bias=last_bias).build((1, 8, 8), CLASSES, seed=3)


def attacked(
    digits: Examples,
    training: LocalTraining,
    *,
    threat: ThreatModel = CURIOUS_SERVER,
    model: nn.Module | None = None,
    batch: int = 32,
    clients: int = 12,
    optimizer: Any = "sgd",
    labelled: bool = False,
    rounds: int = 1,
) -> tuple[LabelCounts, float]:
    """The guess and the mean success rate."""
    model = model or network()
    head = last_linear(model)
    shares = HalfQuarterRest(batch=batch, shortage="reuse").split(digits, clients, generator(5, "test"))
    protocol = {
        "classes": CLASSES,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": optimizer,
    }
    trace = MemoryTrace(protocol)
    settings = Settings(rounds=rounds, training=training, secure_aggregation=threat is CURIOUS_SERVER_SECAGG)
    Horizontal(model, [digits.take(share) for share in shares], settings, 5, CLASSES, trace).run()
    known: dict[str, Any] = {"architecture": lambda: model, "unlabelled_aux": digits.x[:100]}
    if labelled:
        known["aux_data"] = digits.take(torch.arange(300))
    guess = Labels()(trace.view(threat, knowledge=known), seed=1)
    assert isinstance(guess, LabelCounts)
    return guess, float(overlap(guess.counts, true_counts(guess, trace.truth())).mean())


@pytest.mark.parametrize(
    ("training", "least"),
    [
        (LocalTraining(algorithm="fedsgd", batch_size=32), 0.98),
        (LocalTraining(lr=0.001, batch_size=8), 0.98),
        (LocalTraining(lr=0.001, batch_size=5), 0.97),  # a short last step
        (LocalTraining(lr=0.001, batch_size=8, epochs=3), 0.95),
    ],
    ids=["fedsgd", "fedavg", "ragged", "epochs"],
)
def test_a_fresh_model_gives_the_labels_away(digits: Examples, training: LocalTraining, least: float) -> None:
    guess, rate = attacked(digits, training)
    assert rate >= least
    assert guess.confidence is not None
    assert guess.sure is not None
    assert guess.sure.shape == guess.counts.shape
    assert abs(float(guess.confidence.mean()) - rate) < 0.1
    assert len(guess.routes) == len(guess.of)
    assert any("by measured" in note for note in guess.notes)


def test_momentum_and_weight_decay_are_taken_out(digits: Examples) -> None:
    training = LocalTraining(lr=0.001, batch_size=4, momentum=0.9, weight_decay=0.1)
    told, rate = attacked(digits, training, optimizer={"name": "sgd", "momentum": 0.9, "weight_decay": 0.1})
    _, untold = attacked(digits, training, optimizer="sgd")
    assert rate > untold
    assert rate > 0.75
    assert any("momentum" in note for note in told.notes)


def test_adam_is_read_as_proportions_with_low_confidence(digits: Examples) -> None:
    guess, _ = attacked(digits, LocalTraining(lr=0.001, batch_size=8, optimizer="adam"), optimizer="adam")
    assert set(guess.routes) == {"ebi"}
    assert guess.confidence is not None
    assert float(guess.confidence.mean()) < 0.85


def test_a_sum_of_clients_is_one_large_batch(digits: Examples) -> None:
    guess, rate = attacked(digits, LocalTraining(lr=0.001, batch_size=8), threat=CURIOUS_SERVER_SECAGG, clients=6)
    assert len(guess.of) == 1
    assert rate > 0.95


def test_an_eavesdropper_needs_no_model(digits: Examples) -> None:
    _, rate = attacked(digits, LocalTraining(algorithm="fedsgd", batch_size=32), threat=EAVESDROPPER)
    assert rate > 0.9


def test_a_missing_bias_hides_little(digits: Examples) -> None:
    training = LocalTraining(algorithm="fedsgd", batch_size=32)
    guess, rate = attacked(digits, training, model=network(last_bias=False))
    assert rate > 0.6
    assert any("no last bias" in note for note in guess.notes)


def test_a_trained_model_is_read_with_labelled_samples(digits: Examples) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.x[300:]), digits.y[300:]).backward()
        optimizer.step()
    guess, rate = attacked(
        digits, LocalTraining(algorithm="fedsgd", batch_size=64), model=model, batch=64, labelled=True
    )
    assert set(guess.routes) <= {"bayes", "rehearsed"}
    assert rate > 0.6


def test_hidden_layers_tell_what_the_last_bias_does_not(digits: Examples) -> None:
    model = Mlp(widths=(96, 96)).build((1, 8, 8), CLASSES, seed=3)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.x[300:]), digits.y[300:]).backward()
        optimizer.step()
    training = LocalTraining(algorithm="fedsgd", batch_size=48)
    guess, rate = attacked(digits, training, model=model, batch=48, labelled=True)
    with_decay = {"name": "sgd", "weight_decay": 0.1}  # moves a layer out of its samples' span: not read
    other, without = attacked(digits, training, model=model, batch=48, labelled=True, optimizer=with_decay)
    assert set(guess.routes) == {"spanned"}
    assert set(other.routes) <= {"bayes", "rehearsed"}
    assert rate > without + 0.05
    assert guess.confidence is not None
    assert abs(float(guess.confidence.mean()) - rate) < 0.1


@pytest.mark.parametrize("batch", [1, 2, 10])
def test_tiny_batches_add_up(digits: Examples, batch: int) -> None:
    guess, rate = attacked(digits, LocalTraining(algorithm="fedsgd", batch_size=batch), batch=batch)
    assert guess.counts.sum(1).tolist() == [batch] * len(guess.of)
    assert rate > 0.9


def test_many_updates_are_read_in_one_call(digits: Examples) -> None:
    """A hundred origins of several rounds; each round has a model of its own."""
    guess, rate = attacked(digits, LocalTraining(lr=0.001, batch_size=16), clients=25, rounds=4)
    assert len(guess.of) == 100
    assert rate > 0.95
