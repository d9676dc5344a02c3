"""Engines: stacked, looped and spread over processes, clients come to the same updates."""

from typing import Any

import pytest
import torch
from spine import CLASSES, FEATURES, attempt, blobs, federation, network, ragged_clients, recorded
from torch import Tensor, nn
from torch.nn import functional

from fedspill.dataset import Examples
from fedspill.errors import UnknownName, UsageError
from fedspill.federation.stacked import is_stackable, why_not_stackable
from fedspill.federation.trainers import _CLIENTS_AT_ONCE
from fedspill.messages import Message
from fedspill.registry import make
from fedspill.training import LocalTraining

TRAININGS: dict[str, LocalTraining] = {
    "sgd": LocalTraining(batch_size=4),
    "ragged batches": LocalTraining(batch_size=5),
    "one batch": LocalTraining(batch_size=100),
    "batch of one": LocalTraining(batch_size=1, lr=0.01),
    "several epochs": LocalTraining(batch_size=5, epochs=3),
    "steps": LocalTraining(batch_size=5, steps=4),
    "steps around a small client": LocalTraining(batch_size=6, steps=9, shuffle=False),
    "momentum": LocalTraining(batch_size=5, epochs=2, momentum=0.9, lr=0.02),
    "weight decay": LocalTraining(batch_size=5, epochs=2, weight_decay=0.1),
    "momentum and weight decay": LocalTraining(batch_size=4, epochs=2, momentum=0.5, weight_decay=0.1),
    "adam": LocalTraining(batch_size=5, epochs=2, optimizer="adam", lr=0.01),
    "adam with weight decay": LocalTraining(batch_size=5, optimizer="adam", lr=0.01, weight_decay=0.1),
    "adadelta": LocalTraining(batch_size=5, epochs=2, optimizer="adadelta", lr=1.0),
    "adadelta with weight decay": LocalTraining(batch_size=4, optimizer="adadelta", lr=1.0, weight_decay=0.1),
}


def assert_same_messages(first: list[Message], second: list[Message], *, tolerance: float) -> None:
    assert [(m.round, m.sender, m.kind) for m in first] == [(m.round, m.sender, m.kind) for m in second]
    assert len(first) > 0
    for one, other in zip(first, second, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            difference = float((tensor - other.tensors[name]).abs().max())
            assert difference <= tolerance * max(1.0, float(tensor.abs().max())), (one.sender, name)


def messages(engine: Any, **options: Any) -> list[Message]:
    trace, _ = recorded(engine=engine, **options)
    return list(trace.messages())


@pytest.mark.parametrize("name", TRAININGS)
def test_stacked_and_loop_training_give_the_same_updates(name: str) -> None:
    options = {"training": TRAININGS[name], "clients": ragged_clients((7, 13, 16, 9, 2, 16))}
    assert_same_messages(messages("loop", **options), messages("stacked", **options), tolerance=1e-5)


@pytest.mark.parametrize(
    "options", [{"activation": "gelu", "widths": [9, 7]}, {"activation": "tanh"}, {"last_bias": False}, {"widths": []}]
)
def test_stacked_and_loop_training_agree_for_other_perceptrons(options: dict[str, Any]) -> None:
    training = LocalTraining(batch_size=5, epochs=2, momentum=0.9)
    results = [messages(engine, training=training, model=network(**options)) for engine in ("loop", "stacked")]
    assert_same_messages(*results, tolerance=1e-5)


class Layered(nn.Module):
    """Somebody else's small network: layer norm, a skip, and logits of a shape of its own."""

    def __init__(self, logits: int = CLASSES, flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, logits)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x + functional.silu(self.inner(x))))
        return out.squeeze(1) if self.flat else out


def binary(samples: int, seed: int) -> Examples:
    examples = blobs(samples, seed)
    return Examples(examples.x, examples.y % 2)


@pytest.mark.parametrize("model", [Layered(), Layered(1), Layered(1, flat=True)], ids=["classes", "(n, 1)", "(n,)"])
def test_stacked_and_loop_training_agree_for_layer_norm_and_a_single_logit(model: nn.Module) -> None:
    clients = [binary(samples, seed) for seed, samples in enumerate((7, 13, 9))]
    results = [messages(engine, model=model, clients=clients) for engine in ("loop", "stacked")]
    assert_same_messages(*results, tolerance=1e-5)


def test_stacked_and_loop_training_agree_for_more_clients_than_one_stack_holds() -> None:
    clients = [blobs(4 + seed % 3, seed) for seed in range(_CLIENTS_AT_ONCE + 6)]
    results = [messages(engine, clients=clients, rounds=1) for engine in ("loop", "stacked")]
    assert_same_messages(*results, tolerance=1e-5)


def test_auto_and_loop_training_agree() -> None:
    assert_same_messages(messages("auto"), messages("loop"), tolerance=1e-5)


@pytest.mark.parametrize("engine", [pytest.param("loop", marks=pytest.mark.slow), "stacked"])
def test_one_and_two_worker_processes_give_the_same_updates(engine: Any) -> None:
    """In a loop to the last bit; stacked, the sums of a smaller stack may round otherwise."""
    options: dict[str, Any] = {"training": LocalTraining(batch_size=5, epochs=2), "clients_per_round": 3}
    alone, together = messages(engine, **options), messages(engine, workers=2, **options)
    assert_same_messages(alone, together, tolerance=0 if engine == "loop" else 1e-5)


def test_workers_run_rounds_in_which_nobody_answers() -> None:
    trace, rounds = recorded(workers=2, drop_out=0.999999)
    assert [done.clients for done in rounds] == [(), ()]
    assert [event.what for event in trace.events].count("did not answer") == 8


class Odd(nn.Module):
    """A network with something that stacking could get wrong."""

    def __init__(self, what: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.what = what
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.extra: nn.Module | None = None
        if what == "frozen":
            self.inner.requires_grad_(False)
        elif what == "shared":
            self.other = nn.Linear(FEATURES, FEATURES)
            self.other.weight = self.inner.weight
        elif what == "unused":
            self.other = nn.Linear(FEATURES, FEATURES)
        elif what == "dropout":
            self.extra = nn.Dropout(0.5)
        elif what == "batch norm":
            self.extra = nn.BatchNorm1d(FEATURES)
        elif what == "statistics of the batch":
            self.extra = nn.BatchNorm1d(FEATURES, track_running_stats=False)
        elif what == "buffer":
            self.register_buffer("scale", torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.inner(x))
        if self.what == "shared":
            hidden = torch.relu(self.other(hidden))
        if self.what == "functional dropout":
            hidden = functional.dropout(hidden, 0.5, self.training)
        if self.what == "buffer":
            hidden = hidden * self.scale
        if self.what == "control flow" and bool(hidden.sum() > 0):
            hidden = hidden * 2
        if self.extra is not None:
            hidden = self.extra(hidden)
        out: Tensor = self.head(hidden)
        return out


ODD = [
    "frozen",
    "shared",
    "unused",
    "dropout",
    "functional dropout",
    "batch norm",
    "statistics of the batch",
    "buffer",
    "control flow",
]


@pytest.mark.parametrize("what", ODD)
def test_what_stacking_would_get_wrong_is_looped_and_refused_if_asked_for(what: str) -> None:
    training = LocalTraining(batch_size=5, weight_decay=0.1)
    model = Odd(what).eval()
    state = torch.random.get_rng_state()
    assert not is_stackable(model, blobs(9, 0), training)
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(UsageError, match="cannot be stacked"):
        federation(model=Odd(what), training=training, engine="stacked")
    for workers in (1, 2):
        refusal = attempt(lambda n=workers: federation(model=Odd(what), training=training, engine="stacked", workers=n))
        assert isinstance(refusal, UsageError)
    options = {"training": training, "clients": ragged_clients((7, 12, 8))}
    results = [messages(engine, model=Odd(what), **options) for engine in ("auto", "loop")]
    assert_same_messages(*results, tolerance=0)


def test_gradients_are_not_stacked() -> None:
    training = LocalTraining(algorithm="fedsgd")
    assert not is_stackable(network(), blobs(9, 0), training)
    with pytest.raises(UsageError, match="fedsgd sends gradients"):
        federation(training=training, engine="stacked")


def test_small_perceptrons_are_stacked_and_large_or_convolutional_networks_are_not() -> None:
    training = LocalTraining()
    images = Examples(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2]))
    assert is_stackable(network(), blobs(9, 0), training)
    assert not is_stackable(network(widths=[5000, 100]), blobs(9, 0), training)
    convolutional = make("models", "cnn-decaf").build((1, 28, 28), 10, seed=0)
    assert not is_stackable(convolutional, images, training)


def test_a_convolutional_network_can_be_stacked_if_asked_for_and_gives_the_same() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, CLASSES)
    )
    assert why_not_stackable(model, blobs(9, 0), LocalTraining()) is None
    results = [messages(engine, model=model) for engine in ("loop", "stacked")]
    assert_same_messages(*results, tolerance=1e-5)


def test_a_misspelt_engine_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'stacked'"):
        federation(engine="staked")
