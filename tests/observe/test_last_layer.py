"""What label attacks read, and that they read it right: from hand-made messages and from real untrained networks."""

from functools import partial
from typing import Any

import pytest
import torch
from spine import CLASSES, blobs, knowledge, network, protocol_of, recorded

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.metrics import LabelSuccess
from fedspill.messages import Message
from fedspill.observe.last_layer import class_pulls, last_layer_gradients, read_last_layer
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER, CURIOUS_SERVER_SECAGG
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining, Schedule

HEAD = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([1.0, -1.0])}


def read(message: Message, **options: Any) -> Any:
    return last_layer_gradients([message], **{"weight": "w", "bias": "b", "lr": 0.5, "batch_size": 4, **options})


def test_an_update_is_minus_lr_times_the_gradients_of_a_pass() -> None:
    layer = read(Message(1, "client:0", "server", "update", HEAD, {"examples": 10}))
    assert layer.of == (Origin(1, "client:0"),)
    assert layer.weight_sums.tolist() == [[-6.0, -14.0]]
    assert layer.bias.tolist() == [[-2.0, 2.0]]
    assert layer.schedules == (Schedule(10, 4),)
    assert layer.samples.tolist() == [10]
    assert layer.bias.dtype == torch.float64


def test_classes_that_cancel_in_the_bias_still_pull_features_of_their_own() -> None:
    """Samples of three classes, as many of each, with a feature each beside one that all share; a fourth is absent."""
    features = torch.cat([torch.eye(4, dtype=torch.float64)[:3], torch.ones(3, 1, dtype=torch.float64)], 1)
    errors = 0.25 - torch.eye(3, 4, dtype=torch.float64)  # an even model's probability minus the label
    weight, bias = errors.T @ features, errors.sum(0)
    pulls = class_pulls(weight, bias)
    assert pulls[3] == 0
    assert torch.allclose(pulls[:3], pulls[0].expand(3))
    assert float(pulls[0]) > 0.5
    turned = weight * torch.tensor([1.0, -1, 1, 1, -1])  # features of either sign say the same
    assert torch.allclose(class_pulls(turned, bias), pulls)


def test_epochs_are_averaged() -> None:
    layer = read(Message(1, "client:0", "server", "update", HEAD, {"examples": 10}), epochs=2)
    assert layer.bias.tolist() == [[-1.0, 1.0]]
    assert layer.schedules == (Schedule(10, 4, 2),)


def test_a_gradient_is_one_step_of_all_its_samples() -> None:
    layer = read(Message(1, "client:0", "server", "gradient", HEAD, {"examples": 10}), epochs=2)
    assert layer.bias.tolist() == [[1.0, -1.0]]
    assert layer.schedules == (Schedule(10, 10),)


@pytest.mark.parametrize(("of", "bias", "schedule"), [
    ("update", [-2.0, 2.0], Schedule(30, 12)), ("gradient", [1.0, -1.0], Schedule(30, 30))
])  # fmt: skip
def test_a_sum_says_what_it_is_the_sum_of(of: str, bias: list[float], schedule: Schedule) -> None:
    info = {"examples": 30, "clients": 3, "of": of}
    layer = read(Message(1, "aggregator", "server", "aggregate", HEAD, info))
    assert layer.bias.tolist() == [bias]
    assert layer.schedules == (schedule,)


def test_a_convolutional_last_layer_is_summed_over_all_its_features() -> None:
    tensors = {"w": torch.ones(2, 3, 1, 1), "b": HEAD["b"]}
    assert read(Message(0, "c", "server", "gradient", tensors, {"examples": 1})).weight_sums.tolist() == [[3.0, 3.0]]


def test_without_a_bias_the_weights_are_read_and_who_needs_it_says_so() -> None:
    for bias in (None, "b"):
        layer = read(Message(0, "c", "server", "gradient", {"w": HEAD["w"]}, {"examples": 1}), bias=bias)
        assert layer.bias is None
        with pytest.raises(NotApplicable, match="llbg reads the last bias, and this model has none"):
            layer.require_bias("llbg")


def test_what_cannot_be_read_is_left_out_and_named() -> None:
    good = Message(0, "client:0", "server", "update", HEAD, {"examples": 3})
    bad = [
        ({"w": HEAD["w"]}, "does not hold the last layer (b)"),
        ({"b": HEAD["b"]}, "does not hold the last layer (w)"),
        ({**HEAD, "b": torch.ones(1)}, "has shape (1,) at 'b', expected (2,)"),
        ({**HEAD, "w": torch.ones(3, 2)}, "has shape (3, 2) at 'w', expected one row for each of 2 classes"),
        ({**HEAD, "w": torch.full((2, 2), torch.inf)}, "has NaN or infinite values at 'w'"),
        ({**HEAD, "b": torch.ones(2, dtype=torch.int32)}, "has whole numbers at 'b'"),
    ]
    for tensors, why in bad:
        second = Message(3, "client:1", "server", "update", tensors, {"examples": 3})
        layer = last_layer_gradients([good, second], weight="w", bias="b", lr=0.1, batch_size=2, classes=2)
        assert layer.of == (Origin(0, "client:0"),)
        (note,) = layer.notes
        assert note == f"client:1 in round 3 was left out: its update {why}"


def test_when_nothing_can_be_read_the_first_reasons_are_given() -> None:
    broken = {"w": torch.full((2, 2), torch.nan), "b": HEAD["b"]}
    messages = [Message(0, f"client:{index}", "server", "update", broken, {"examples": 3}) for index in range(9)]
    with pytest.raises(NotApplicable, match=r"No last layer can be read.*client:0 in round 0.*NaN") as refused:
        last_layer_gradients(messages, weight="w", bias="b", lr=0.1, batch_size=2, classes=2)
    assert "client:8" not in str(refused.value)


def test_updates_go_before_sums_and_sums_are_read_where_updates_are_hidden() -> None:
    trace, _ = recorded(rounds=1)
    plain = read_last_layer(trace.view(CURIOUS_SERVER))
    assert [origin.sender for origin in plain.of] == [f"client:{index}" for index in range(4)]
    hidden = read_last_layer(trace.view(CURIOUS_SERVER_SECAGG))
    assert [origin.sender for origin in hidden.of] == ["aggregator"]
    secure, _ = recorded(rounds=1, secure_aggregation=True)
    assert [origin.sender for origin in read_last_layer(secure.view(CURIOUS_SERVER)).of] == ["aggregator"]


def test_the_bias_gradient_of_a_real_network_is_probability_minus_share() -> None:
    """The equation that this all rests on: beta = mean probability - counts / B, here for one FedSGD step."""
    examples = blobs(20, 5)
    trace, _ = recorded([examples], training=LocalTraining(algorithm="fedsgd", batch_size=20), rounds=1)
    layer = read_last_layer(trace.view(CURIOUS_SERVER))
    probability = network()(examples.x).softmax(1).mean(0).double()
    counts = torch.bincount(examples.y, minlength=CLASSES)
    torch.testing.assert_close(layer.bias[0], probability - counts / 20, atol=1e-6, rtol=0)


# Real untrained networks on real digits, in the authors' protocol.


@pytest.fixture(scope="module")
def digits() -> Examples:
    loaded: Examples = make("datasets", "digits").load().train
    return loaded


def digits_trace(digits: Examples, batches: int, batch: int, steps: int, **options: Any) -> MemoryTrace:
    """Half of one class, a quarter of another, the rest of any; ten local steps at 0.001."""
    split = make("partitions", "half-quarter-rest", {"batch": batch})
    shares = split.split(digits, batches, torch.Generator().manual_seed(11))
    training = LocalTraining(lr=0.001, batch_size=-(-batch // steps), **options)
    model = make("models", "mlp", {"widths": [64]}).build((1, 8, 8), 10, seed=4)
    settings = Settings(rounds=1, training=training)
    trace = MemoryTrace(protocol_of(model, settings, batches, classes=10))
    Horizontal(model, [digits.take(share) for share in shares], settings, 9, 10, trace).run()
    return trace


def success(trace: MemoryTrace, attack: str, known: dict[str, Any] | None = None, **options: Any) -> float:
    guess = make("attacks", attack, options)(trace.view(CURIOUS_SERVER, knowledge=known), seed=0)
    assert isinstance(guess, LabelCounts)
    score = LabelSuccess().score(guess, trace.truth())
    assert score.status == "ok"
    assert score.n == 30
    return score.value


def test_llbg_reads_an_untrained_network_better_than_llg_and_ebi(digits: Examples) -> None:
    """LLBG takes one over the classes for nothing: with 10 of them it pays a little for that, with 100 hardly."""
    trace = digits_trace(digits, 30, 64, 10)
    llbg, ebi, llg = (success(trace, name) for name in ("llbg", "ebi", "llg"))
    assert llbg > 0.85
    assert llbg > ebi > 0.5
    assert llbg > llg > 0.5


def test_llbg_reads_a_hundred_classes_as_the_paper_says() -> None:
    """Table 1: 99.6 % of the labels of a batch of 128 in ten local steps, from an untrained perceptron."""
    many = blobs(20_000, 1, classes=100, features=64)
    split = make("partitions", "half-quarter-rest", {"batch": 128, "shortage": "reuse"})
    shares = split.split(many, 30, torch.Generator().manual_seed(11))
    model = network(4, classes=100, features=64, widths=[128])
    settings = Settings(rounds=1, training=LocalTraining(lr=0.001, batch_size=13))
    trace = MemoryTrace(protocol_of(model, settings, 30, classes=100))
    Horizontal(model, [many.take(share) for share in shares], settings, 9, 100, trace).run()
    assert success(trace, "llbg") > 0.98
    assert success(trace, "llbg") > success(trace, "llg")


def test_with_gamma_zero_the_attack_on_trained_models_is_the_one_on_untrained_ones(digits: Examples) -> None:
    trace = digits_trace(digits, 30, 64, 10)
    view = partial(trace.view, CURIOUS_SERVER)
    plain = make("attacks", "llbg")(view(), seed=0)
    assert torch.equal(plain.counts, make("attacks", "llbg-gamma", {"gamma": 0.0})(view(), seed=0).counts)
    assert not torch.equal(plain.counts, make("attacks", "llbg-gamma", {"gamma": 0.9})(view(), seed=0).counts)


def test_the_confidence_of_a_trained_network_is_measured_on_auxiliary_data(digits: Examples) -> None:
    build = partial(make("models", "mlp", {"widths": [64]}).build, (1, 8, 8), 10, seed=4)
    known = {"architecture": build, "aux_data": digits.take(torch.arange(0, 300))}
    trace = digits_trace(digits, 30, 64, 1, algorithm="fedsgd")
    assert success(trace, "llbg-aux", known) > 0.9


def test_llbg_reads_the_single_gradients_of_fedsgd_too(digits: Examples) -> None:
    assert success(digits_trace(digits, 30, 64, 1, algorithm="fedsgd"), "llbg") > 0.85


def test_llbg_aux_needs_every_class_and_every_model() -> None:
    trace, _ = recorded()
    known = knowledge()
    known["aux_data"] = Examples(known["aux_data"].x[:5], torch.zeros(5, dtype=torch.int64))
    with pytest.raises(NotApplicable, match="lack some class"):
        make("attacks", "llbg-aux")(trace.view(CURIOUS_SERVER, knowledge=known), seed=0)
    cut = MemoryTrace.of((m for m in trace.messages() if (m.kind, m.round) != ("model", 1)), trace.protocol)
    with pytest.raises(NotApplicable, match="model of round 1 was not recorded"):
        make("attacks", "llbg-aux")(cut.view(CURIOUS_SERVER, knowledge=knowledge()), seed=0)
