"""What every defense must keep, and that what it declares as its effect can be seen on a message.

A new defense is run here without being mentioned. If it fails: return a new message, draw from `rng` only, and declare
in `effect` what an attacker may know of it, or nothing where no reading changes.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from spine import blobs, network
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.defense import ClientContext, DataUse, Defense, Guarantee, SentMessages, Verdict, WireEffect
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.registry import entries, make
from fedspill.training import LocalTraining, gradient

DEFENSES: list[Defense] = []  # each as it is made without options, and at every strength that an audit tries
for _entry in entries("defenses"):
    for _options in ({}, *make("defenses", _entry.name).strengths):
        _made = make("defenses", _entry.name, _options)
        DEFENSES += [] if _made in DEFENSES else [_made]
CLASSES, FEATURES, SIZE = 5, 40, 64
every_defense = pytest.mark.parametrize("defense", DEFENSES, ids=str)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net(seed: int = 0) -> torch.nn.Module:
    return network(seed, features=FEATURES, classes=CLASSES, widths=[200])


def update(scale: float = 1.0) -> Message:
    """What a client of such a network might send, of 9,000 numbers."""
    tensors = {name: scale * torch.randn(tensor.shape, generator=rng(1)) for name, tensor in net().state_dict().items()}
    return Message(3, "client:0", SERVER, "update", tensors, {"examples": SIZE})


def address(message: Message) -> tuple[object, ...]:
    return message.round, message.sender, message.receiver, message.kind, dict(message.info)


def batch(samples: int = SIZE, scale: float = 1.0) -> Examples:
    examples = blobs(samples, seed=2, classes=CLASSES, features=FEATURES)
    return Examples(scale * examples.x, examples.y)


def step_gradient(defense: Defense, examples: Examples, seed: int = 0) -> dict[str, Tensor]:
    """The gradient of one local step behind the defense."""
    training = defense.local(LocalTraining(batch_size=len(examples)))
    torch.manual_seed(seed)  # layers of torch itself, such as dropout, draw from the global generator
    return training.gradient_of(net(), examples, rng(seed))


def norm(tensors: dict[str, Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors.values()]).norm())


def unlike(first: dict[str, Tensor], second: dict[str, Tensor]) -> Tensor:
    """All differences of two sets of tensors as one vector."""
    return torch.cat([(first[name] - second[name]).flatten() for name in first])


@every_defense
def test_what_leaves_keeps_its_names_shapes_types_and_address_and_is_finite(defense: Defense) -> None:
    message = update()
    sent = defense.outgoing(message, rng())
    assert list(sent.tensors) == list(message.tensors)
    for name, tensor in message.tensors.items():
        assert sent.tensors[name].shape == tensor.shape
        assert sent.tensors[name].dtype == tensor.dtype
        assert bool(sent.tensors[name].isfinite().all())
    assert address(sent) == address(message)


@every_defense
def test_a_message_of_zeros_or_of_one_number_goes_through(defense: Defense) -> None:
    for message in (update(0.0), replace(update(), tensors={"one": torch.ones(1)})):
        sent = defense.outgoing(message, rng())
        assert {name: t.shape for name, t in sent.tensors.items()} == {n: t.shape for n, t in message.tensors.items()}
        assert all(bool(tensor.isfinite().all()) for tensor in sent.tensors.values())


@every_defense
def test_it_leaves_the_message_and_the_data_that_it_is_given_alone(defense: Defense) -> None:
    message, kept = update(), update()
    defense.outgoing(message, rng())
    assert all(map(torch.equal, message.tensors.values(), kept.tensors.values()))
    own, public = batch(20), batch(60)
    changed = defense.data(own, public, rng())
    assert torch.equal(own.x, batch(20).x)
    assert torch.equal(public.y, batch(60).y)
    assert torch.equal(changed.x[: len(own)], own.x), "a client's own samples come first"
    assert torch.equal(changed.y[: len(own)], own.y)


@every_defense
def test_the_same_generator_gives_the_same_message(defense: Defense) -> None:
    first, again = (defense.outgoing(update(), rng(4)) for _ in range(2))
    assert all(map(torch.equal, first.tensors.values(), again.tensors.values()))
    one, other = (step_gradient(defense, batch(), 4) for _ in range(2))
    assert all(map(torch.equal, one.values(), other.values()))


@every_defense
def test_it_leaves_the_global_random_state_alone(defense: Defense) -> None:
    before = torch.random.get_rng_state()
    defense.outgoing(update(), rng())
    defense.data(batch(20), batch(60), rng())
    assert torch.equal(before, torch.random.get_rng_state())


@every_defense
def test_its_step_gradients_are_finite_and_fit_the_model(defense: Defense) -> None:
    found = step_gradient(defense, batch())
    assert {name: part.shape for name, part in found.items()} == {
        name: parameter.shape for name, parameter in net().named_parameters()
    }
    assert all(bool(part.isfinite().all()) for part in found.values())


@every_defense
def test_it_judges_a_model_and_answers_every_question(defense: Defense) -> None:
    model = Message(0, SERVER, EVERYONE, "model", dict(net().state_dict()), {})
    client = ClientContext(architecture=net, examples=batch())
    verdict = defense.incoming(model, None, client)
    assert isinstance(verdict, Verdict)
    assert verdict.action == "accept", "the first model there is has nothing to be compared with"
    use = DataUse(rounds=5, steps=4, epochs=1, sampling=0.25, parameters=9000, samples=SIZE)
    claim = defense.claims(use)
    assert claim is None or (isinstance(claim, Guarantee) and claim.epsilon > 0)
    assert defense.verify(SentMessages(())).defense == defense.name


# What is seen of each number of an effect; True where it is there. Noise is held to 10 %: of the 9,000 numbers of a
# message a standard deviation has a standard error of 1 % (of Laplace noise 2 %).


def _noise_on_message(defense: Defense, effect: WireEffect) -> bool:
    sent = defense.outgoing(update(0.0), rng())
    found = float(torch.cat([tensor.flatten() for tensor in sent.tensors.values()]).std())
    return math.isclose(found, effect.update_noise, rel_tol=0.1)


def _noise_on_steps(defense: Defense, deviation: float) -> bool:
    first, second = (step_gradient(defense, batch(), seed) for seed in (1, 2))
    return math.isclose(float(unlike(first, second).std()) / math.sqrt(2), deviation, rel_tol=0.1)


def _is_clipped(tensors: dict[str, Tensor], clip: float, noise: float, raw: float) -> bool:
    numbers = sum(tensor.numel() for tensor in tensors.values())
    return raw > 2 * clip and norm(tensors) <= clip + noise * (math.sqrt(numbers) + 10)


def _message_clipped(defense: Defense, effect: WireEffect) -> bool:
    assert effect.update_clip is not None
    large = update(10 * effect.update_clip)
    sent = dict(defense.outgoing(large, rng()).tensors)
    return _is_clipped(sent, effect.update_clip, effect.update_noise, norm(dict(large.tensors)))


def _steps_clipped(defense: Defense, clip: float | None, noise: float) -> bool:
    assert clip is not None
    steep = batch(scale=1e3 * clip)
    return _is_clipped(step_gradient(defense, steep), clip, noise, norm(gradient(net(), steep)))


def _smallest_dropped(defense: Defense, effect: WireEffect) -> bool:
    message = update()
    for name, tensor in defense.outgoing(message, rng()).tensors.items():
        size, zero = message.tensors[name].abs(), tensor == 0
        if int(zero.sum()) < int(effect.dropped * tensor.numel()):
            return False
        if bool(zero.any()) and bool((~zero).any()) and float(size[zero].max()) > float(size[~zero].min()):
            return False
    return True


def _rows_dropped(defense: Defense, effect: WireEffect) -> bool:
    rows = defense.outgoing(update(), rng()).tensors["head.weight"]
    return bool(((rows == 0).sum(1) >= int(effect.last_rows_dropped * rows.shape[1])).all())


def _features_dropped(defense: Defense, effect: WireEffect) -> bool:
    plain, found = gradient(net(), batch(1))["head.weight"], step_gradient(defense, batch(1))["head.weight"]
    read = plain.abs().sum(0) > 0  # what was there to drop
    share = float((found[:, read].abs().sum(0) == 0).double().mean())
    return abs(share - effect.features_dropped) < 4 * math.sqrt(0.25 / int(read.sum()))


def _targets_smoothed(defense: Defense, effect: WireEffect) -> bool:
    one = batch(1)
    moved = step_gradient(defense, one)["head.bias"] - gradient(net(), one)["head.bias"]
    hot = torch.nn.functional.one_hot(one.y[0], CLASSES)
    return torch.allclose(moved, effect.smoothed * (hot - 1 / CLASSES), atol=1e-5)


def _rounded(defense: Defense, effect: WireEffect) -> bool:
    assert effect.rounding is not None
    message = update()
    for name, tensor in defense.outgoing(message, rng()).tensors.items():
        moved, step = (tensor - message.tensors[name]).abs(), effect.rounding.step(message.tensors[name])
        if bool((moved > 0.51 * step).any()) or not bool(moved.any()):
            return False
    return True


def _classes_topped_up(defense: Defense, effect: WireEffect) -> bool:
    own, public = Examples(torch.rand(12, FEATURES), torch.tensor([0] * 9 + [1] * 3)), batch(100)
    counts = torch.bincount(defense.data(own, public, rng()).y, minlength=CLASSES)
    return bool((counts >= int(effect.topped_up * 9)).all())


def _stands_still(name: str) -> Callable[[Defense, WireEffect], bool]:
    def seen(defense: Defense, effect: WireEffect) -> bool:
        sent = defense.outgoing(update(), rng()).tensors[name]
        return not bool(sent.any()) and not bool(step_gradient(defense, batch())[name].any())

    return seen


def _order_kept(defense: Defense, effect: WireEffect) -> bool:
    message = update()
    for name, tensor in defense.outgoing(message, rng()).tensors.items():
        true = message.tensors[name].flatten()
        ascending = tensor.flatten()[true.argsort()]
        if bool((ascending.diff() < 0).any()) or torch.equal(tensor.flatten(), true):
            return False
    return True


def _rescaled(defense: Defense, effect: WireEffect) -> bool:
    message = update()
    sent = dict(defense.outgoing(message, rng()).tensors)
    return not math.isclose(norm(sent), norm(dict(message.tensors)), rel_tol=1e-3)


def _sent_back(defense: Defense, seed: int = 0) -> Tensor:
    """What a party of a vertical federation gets instead of gradients (64, 40) of two classes."""
    labels = torch.arange(SIZE) % 2
    gradient = torch.randn(SIZE, FEATURES, generator=rng(5)) + 2.0 * labels[:, None]
    message = Message(0, SERVER, "party:0", "returned", {"gradient": gradient}, {"examples": SIZE})
    return defense.returned(message, labels, rng(seed)).tensors["gradient"]


def _noise_sent_back(defense: Defense, effect: WireEffect) -> bool:
    return not torch.equal(_sent_back(defense, 1), _sent_back(defense, 2))


def _few_values_sent_back(defense: Defense, effect: WireEffect) -> bool:
    return len(torch.unique(_sent_back(defense))) < 20


def _noise_on_embeddings(defense: Defense, effect: WireEffect) -> bool:
    output = torch.randn(SIZE, 200, generator=rng(6))
    message = Message(0, "party:0", SERVER, "embedding", {"output": output}, {"examples": SIZE})
    moved = defense.outgoing(message, rng()).tensors["output"] - output
    return math.isclose(float(moved.std()), effect.embedding_noise * float(output.std()), rel_tol=0.1)


def _labels_redrawn(defense: Defense, effect: WireEffect) -> bool:
    labels = torch.arange(10_000) % CLASSES
    share = float((defense.labels(labels, CLASSES, rng()) != labels).double().mean())
    return abs(share - effect.labels_redrawn * (1 - 1 / CLASSES)) < 0.03


SEEN: dict[str, Callable[[Any, WireEffect], bool]] = {
    "sample_clip": lambda d, e: _steps_clipped(d, e.sample_clip, e.sample_sum_noise / SIZE),
    "sample_sum_noise": lambda d, e: _noise_on_steps(d, e.sample_sum_noise / SIZE),
    "step_clip": lambda d, e: _steps_clipped(d, e.step_clip, e.step_noise),
    "step_noise": lambda d, e: _noise_on_steps(d, e.step_noise),
    "update_clip": _message_clipped,
    "update_noise": _noise_on_message,
    "rescaled": _rescaled,
    "dropped": _smallest_dropped,
    "last_rows_dropped": _rows_dropped,
    "features_dropped": _features_dropped,
    "smoothed": _targets_smoothed,
    "rounding": _rounded,
    "topped_up": _classes_topped_up,
    "no_last_bias": _stands_still("head.bias"),
    "no_last_layer": _stands_still("head.weight"),
    "only_order": _order_kept,
    "returned_noise": _noise_sent_back,
    "returned_coarse": _few_values_sent_back,
    "embedding_noise": _noise_on_embeddings,
    "labels_redrawn": _labels_redrawn,
}
DECLARED = DEFENSES + [
    make("defenses", name, options)
    for name, options in [
        ("clip-noise", {"per": "step", "clip": 0.5, "sigma": 0.02}),
        ("clip-noise", {"law": "laplace", "clip": None, "sigma": 0.3}),
        ("compression", {"of": "head", "drop": 0.7}),
        ("dp-sgd", {"sampling": "shuffle", "clip": 0.2}),
        ("dropout", {"rate": 0.25}),
        ("frozen-head", {"what": "bias"}),
        ("fake-gradients", {"scaled": False}),
        ("label-smoothing", {"amount": 0.7}),
        ("mixed-classes", {"level": 0.5}),
        ("quantization", {"type": "fp16"}),
        ("quantization", {"type": "bf16"}),
    ]
]


def claimed(effect: WireEffect) -> list[str]:
    return [item.name for item in dataclasses.fields(effect) if getattr(effect, item.name) != item.default]


def test_every_number_of_an_effect_is_looked_for() -> None:
    assert SEEN.keys() == {item.name for item in dataclasses.fields(WireEffect)}, "say above how it can be seen"


@pytest.mark.parametrize("defense", DECLARED, ids=str)
def test_what_it_declares_is_seen_on_a_message(defense: Defense) -> None:
    effect = defense.effect()
    assert isinstance(effect, WireEffect)
    for name in claimed(effect):
        if name == "only_order" and getattr(defense, "reading", "") == "clamped":
            continue  # keeps small values as they are: their order is kept in part only
        assert SEEN[name](defense, effect), f"{name} = {getattr(effect, name)} is not what {defense} does"


def test_what_nobody_does_is_seen_on_no_message() -> None:
    """The looks above do not say yes to everything: a defense that does nothing has none of these effects."""
    nothing = make("defenses", "larger-batches", {"factor": 1})
    boast = WireEffect(
        sample_clip=0.1, sample_sum_noise=1.0, step_clip=0.1, step_noise=0.1, update_clip=0.1, update_noise=0.1,
        rescaled=True, dropped=0.5, last_rows_dropped=0.5, features_dropped=0.5, smoothed=0.5,
        rounding=make("defenses", "quantization").effect().rounding, topped_up=1.0, no_last_bias=True,
        no_last_layer=True, only_order=True, returned_noise=True, returned_coarse=True, embedding_noise=0.2,
        labels_redrawn=0.5,
    )  # fmt: skip
    assert claimed(boast) == list(SEEN)
    assert [name for name, seen in SEEN.items() if seen(nothing, boast)] == []


@every_defense
def test_what_goes_back_to_a_party_keeps_its_shape_and_is_finite_and_declared(defense: Defense) -> None:
    for scale in (0.0, 1.0, 1e-20):
        gradient = scale * torch.randn(6, 4, generator=rng())
        message = Message(0, SERVER, "party:0", "returned", {"gradient": gradient}, {"examples": 6})
        sent = defense.returned(message, torch.tensor([0, 1, 0, 1, 1, 0]), rng())
        assert sent.tensors["gradient"].shape == gradient.shape
        assert bool(sent.tensors["gradient"].isfinite().all())
        assert address(sent) == address(message)
        if not torch.equal(sent.tensors["gradient"], gradient):
            assert defense.effect() != WireEffect(), "declare in `effect` what an attacker may know of it"


@every_defense
def test_what_changes_a_message_declares_it(defense: Defense) -> None:
    sent = defense.outgoing(update(100.0), rng())
    if any(not torch.equal(sent.tensors[name], tensor) for name, tensor in update(100.0).tensors.items()):
        assert defense.effect() != WireEffect(), "declare in `effect` what an attacker may know of it"
