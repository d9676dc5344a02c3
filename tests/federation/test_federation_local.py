"""Local training: the batches, the optimizers, the gradient, and what of a model travels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spine import CLASSES, FEATURES, blobs, network
from torch import Tensor, nn
from torch.nn import functional

from fedspill.dataset import Examples
from fedspill.errors import UnknownName, UsageError
from fedspill.federation.local import accuracy, load, state_of, train
from fedspill.seeds import generator
from fedspill.training import LocalTraining, gradient, loss_of


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_pass_trains_on_every_sample_once(samples: int, batch: int, epochs: int, shuffle: bool) -> None:
    training = LocalTraining(batch_size=batch, epochs=epochs, shuffle=shuffle)
    steps = training.batches(samples, rng())
    schedule = training.schedule(samples)
    assert [len(step) for step in steps] == schedule.sizes() * epochs
    per_pass = len(steps) // epochs
    for number in range(epochs):
        seen = torch.cat(steps[number * per_pass : (number + 1) * per_pass])
        assert sorted(seen.tolist()) == list(range(samples))
        if not shuffle:
            assert seen.tolist() == list(range(samples))
    assert sorted(training.used(samples, rng()).tolist()) == list(range(samples))


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_steps_wrap_around_and_use_samples_evenly(samples: int, batch: int, steps: int) -> None:
    training = LocalTraining(batch_size=batch, steps=steps)
    made = training.batches(samples, rng())
    assert [len(step) for step in made] == [batch] * steps
    used = training.used(samples, rng())
    assert torch.equal(used, torch.cat(made))
    times = torch.bincount(used, minlength=samples)
    assert int(times.max()) - int(times.min()) <= 1
    assert training.schedule(samples).samples == steps * batch == len(used)


@pytest.mark.parametrize("samples", [3, 8, 20])
def test_fedsgd_takes_one_batch_whatever_epochs_say(samples: int) -> None:
    training = LocalTraining(algorithm="fedsgd", batch_size=8, epochs=3)
    (batch,) = training.batches(samples, rng())
    assert len(batch) == len(set(batch.tolist())) == min(samples, 8)
    assert torch.equal(batch, training.used(samples, rng()))


def test_batches_depend_on_the_generator_only() -> None:
    training = LocalTraining(batch_size=4)
    first = training.batches(10, rng(1))
    assert all(torch.equal(a, b) for a, b in zip(first, training.batches(10, rng(1)), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, training.batches(10, rng(2)), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": float("nan")},
        {"weight_decay": -1.0},
        {"weight_decay": float("nan")},
        {"optimizer": "adam", "momentum": 0.5},
        {"batch_size": 0},
        {"epochs": 0},
        {"steps": 0},
        {"steps": -3},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LocalTraining(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "word", "nearest"),
    [("optimizer", "adan", "adam"), ("algorithm", "fedavgg", "fedavg"), ("batch_norm", "evl", "eval")],
)
def test_a_misspelt_choice_is_refused(option: str, word: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"{word!r}. Did you mean '{nearest}'"):
        LocalTraining(**{option: word})  # type: ignore[arg-type]


def test_the_fedsgd_gradient_is_autograd_s_on_the_batch() -> None:
    examples, model = blobs(30, 1), network()
    training = LocalTraining(algorithm="fedsgd", batch_size=12)
    sent = train(model, state_of(network()), examples, training, generator(5, "x"))
    batch = training.batches(30, generator(5, "x"))[0]
    reference = network()
    functional.cross_entropy(reference(examples.x[batch]), examples.y[batch]).backward()
    assert sent.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(sent[name], parameter.grad)


def test_an_update_is_minus_lr_times_the_sum_of_step_gradients() -> None:
    """What every label attack rests on."""
    examples, start = blobs(30, 1), state_of(network())
    training = LocalTraining(batch_size=8, lr=0.1, shuffle=False)
    sent = train(network(), start, examples, training, rng())
    model, total = network(), dict.fromkeys(start, torch.tensor(0.0))
    for first in range(0, 30, 8):
        found = gradient(model, Examples(examples.x[first : first + 8], examples.y[first : first + 8]))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * found[name]
                total[name] = total[name] + found[name]
    for name in start:
        torch.testing.assert_close(sent[name], -0.1 * total[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adadelta"])
def test_local_steps_are_those_of_torch_s_optimizer(optimizer: str) -> None:
    examples, start = blobs(20, 2), state_of(network())
    training = LocalTraining(optimizer=optimizer, lr=0.2, weight_decay=0.1, batch_size=20, epochs=3, shuffle=False)  # type: ignore[arg-type]
    sent = train(network(), start, examples, training, rng())
    reference = network()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adadelta": torch.optim.Adadelta}[optimizer]
    steps = kind(reference.parameters(), lr=0.2, weight_decay=0.1)
    for _ in range(3):
        steps.zero_grad()
        functional.cross_entropy(reference(examples.x), examples.y).backward()
        steps.step()
    for name, value in state_of(reference).items():
        torch.testing.assert_close(sent[name], value - start[name])


class Normed(nn.Module):
    """Has what is not a plain parameter: batch norm, a constant that no checkpoint holds, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, FEATURES)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("constant", torch.ones(FEATURES), persistent=False)
        self.register_buffer("stored", torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.frozen(x) * self.constant * self.stored))
        return out


def normed() -> Normed:
    torch.manual_seed(3)
    return Normed()


def test_the_state_that_is_sent_is_what_a_checkpoint_holds() -> None:
    assert state_of(normed()).keys() == normed().state_dict().keys()
    assert "constant" not in state_of(normed())


def test_state_is_loaded_into_the_model_s_own_storage() -> None:
    model, other = network(0), network(1)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    load(model, state_of(other))
    assert pointers == [parameter.data_ptr() for parameter in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    load(model, {name: tensor + 1 for name, tensor in state_of(model).items()})
    assert all(torch.equal(a, b + 1) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_batch_norm_in_training_mode_moves_its_statistics_and_in_evaluation_mode_keeps_them() -> None:
    start = {name: tensor.clone() for name, tensor in state_of(normed()).items()}
    moved = train(normed(), start, blobs(20, 1), LocalTraining(batch_size=10), rng())
    kept = train(normed(), start, blobs(20, 1), LocalTraining(batch_size=10, batch_norm="eval"), rng())
    assert bool(moved["norm.running_mean"].any())
    assert not bool(kept["norm.running_mean"].any())
    assert not bool(kept["norm.running_var"].any())
    assert bool(kept["norm.weight"].any()), "its own parameters are trained in both"
    assert bool(kept["head.weight"].any())
    assert "norm.num_batches_tracked" not in moved, "whole numbers do not travel in updates"


def test_batch_norm_in_evaluation_mode_uses_the_statistics_it_received() -> None:
    """In evaluation mode a sample's gradient does not depend on the others in its batch."""
    examples = blobs(6, 1)
    model = normed()
    training = LocalTraining(algorithm="fedsgd", batch_size=6, batch_norm="eval", shuffle=False)
    whole = train(model, state_of(normed()), examples, training, rng())
    halves = [
        train(model, state_of(normed()), examples.take(part), training, rng()) for part in torch.arange(6).split(3)
    ]
    torch.testing.assert_close(whole["head.weight"], (halves[0]["head.weight"] + halves[1]["head.weight"]) / 2)


def test_frozen_layers_do_not_move_and_send_no_gradient() -> None:
    start = {name: tensor.clone() for name, tensor in state_of(normed()).items()}
    update = train(normed(), start, blobs(20, 1), LocalTraining(batch_size=10, weight_decay=0.1), rng())
    assert not bool(update["frozen.weight"].any())
    sent = train(normed(), start, blobs(20, 1), LocalTraining(algorithm="fedsgd", batch_size=10), rng())
    assert "frozen.weight" not in sent
    assert bool(sent["head.weight"].any())
    assert not bool(sent["unused.weight"].any()), "a layer that is not used has a gradient of zero"


def test_a_step_of_one_sample_that_batch_norm_cannot_train_on_is_refused_in_words() -> None:
    for algorithm in ("fedavg", "fedsgd"):
        training = LocalTraining(algorithm=algorithm, batch_size=1 if algorithm == "fedsgd" else 4)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"step of 1 sample.*batch_norm = 'eval'"):
            train(normed(), state_of(normed()), blobs(9, 1), training, rng())


def test_dropout_follows_the_client_s_generator_and_the_global_one_is_left_alone() -> None:
    model, examples = network(dropout=0.5), blobs(20, 1)
    start = state_of(network(dropout=0.5))
    before = torch.random.get_rng_state()
    first = train(model, start, examples, LocalTraining(), generator(1, "a"))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    second = train(model, start, examples, LocalTraining(), generator(1, "a"))
    other = train(model, start, examples, LocalTraining(shuffle=False), generator(2, "a"))
    another = train(model, start, examples, LocalTraining(shuffle=False), generator(3, "a"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(other["head.bias"], another["head.bias"])


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_single_logit_is_a_sigmoid_s(shape: tuple[int, ...]) -> None:
    logits, labels = torch.tensor([0.3, -2.0, 1.0, 0.0]), torch.tensor([1, 0, 0, 1])
    expected = -(torch.sigmoid(logits).log() * labels + (1 - torch.sigmoid(logits)).log() * (1 - labels)).mean()
    torch.testing.assert_close(loss_of(logits.reshape(shape), labels), expected)


class Fixed(nn.Module):
    def __init__(self, *ends: int) -> None:
        super().__init__()
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.ends[0]].reshape(len(x), *self.ends[1:])


def test_accuracy_is_the_share_counted_by_hand() -> None:
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 3.0]]), torch.tensor([0, 1, 1, 1])
    assert accuracy(Fixed(2, 2), Examples(x, y)) == 0.75
    assert accuracy(Fixed(2, 2), Examples(x, y), batch=3) == 0.75
    for model in (Fixed(1, 1), Fixed(1)):  # one logit: above zero is class 1
        assert accuracy(model, Examples(x, torch.tensor([1, 0, 1, 1]))) == 0.75
