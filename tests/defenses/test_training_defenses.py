"""Defenses inside local training: each does to the steps what it says, and the rest is as it was."""

import warnings
from typing import Any

import pytest
import torch
from spine import blobs, network, recorded
from torch import nn

from fedspill.dataset import Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.dropout import Dropout
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.larger_batches import LargerBatches
from fedspill.defenses.mixed_classes import MixedClasses
from fedspill.errors import UsageError
from fedspill.federation.guarded import GuardedTraining, clipped_mean, guarded
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import train
from fedspill.seeds import generator
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining, gradient

SGD = LocalTraining(lr=0.1, batch_size=8, shuffle=False)


def start(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained_with(*defenses: Any, training: LocalTraining = SGD, samples: int = 8) -> dict[str, torch.Tensor]:
    for defense in defenses:
        training = defense.local(training)
    model = network()
    return train(model, start(model), blobs(samples, 1), training, generator(1))


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([t.flatten() for t in tensors.values()]).norm())


def test_a_rule_that_changes_nothing_trains_the_same() -> None:
    plain = trained_with()
    same = trained_with(LabelSmoothing(amount=0.0))
    assert all(torch.allclose(plain[name], same[name], atol=1e-6) for name in plain)


def test_every_step_is_clipped() -> None:
    steps = 3
    sent = trained_with(ClipNoise(clip=0.01, sigma=0, per="step"), samples=8 * steps)
    assert norm(sent) <= 0.1 * 0.01 * steps + 1e-6
    assert norm(trained_with(samples=8 * steps)) > norm(sent)


def test_every_step_is_noised() -> None:
    defense = ClipNoise(clip=None, sigma=0.5, per="step")
    noised, plain = trained_with(defense, samples=80), trained_with(samples=80)
    difference = torch.cat([(noised[name] - plain[name]).flatten() for name in plain])
    assert float(difference.std()) == pytest.approx(0.1 * 0.5 * 10**0.5, rel=0.25)  # ten steps at rate 0.1


def test_per_step_noise_leaves_the_message_alone() -> None:
    message = next(recorded()[0].messages("update"))
    assert ClipNoise(per="step").outgoing(message, generator(1)) is message


def test_dp_sgd_clips_each_sample_and_not_their_sum() -> None:
    model, batch = network(), blobs(6, 2)
    found = clipped_mean(model, batch.x, _one_hot, batch.y, 0.05, 6)
    expected: dict[str, torch.Tensor] = {}
    for index in range(6):
        one = gradient(model, batch.take(torch.tensor([index])))
        scale = min(1.0, 0.05 / norm(one))
        for name, part in one.items():
            expected[name] = expected.get(name, torch.zeros_like(part)) + scale * part / 6
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


def test_its_clipped_gradients_are_those_of_opacus() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opacus = pytest.importorskip("opacus", reason="Opacus is not installed: fedspill[dp]")
        model, batch = network(), blobs(6, 2)
        theirs = opacus.GradSampleModule(network())
        nn.functional.cross_entropy(theirs(batch.x), batch.y, reduction="sum").backward()
        each = [p.grad_sample for p in theirs.parameters()]
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each]).sum(0).sqrt()
    expected = [torch.einsum("n,n...->...", (0.05 / norms).clamp_max(1), g) / 6 for g in each]
    found = clipped_mean(model, batch.x, _one_hot, batch.y, 0.05, 6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found.values(), expected, strict=True))


def _one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return (labels[:, None] == torch.arange(classes)).float()


def test_dp_sgd_draws_its_samples_by_chance() -> None:
    training = DpSgd().local(LocalTraining(batch_size=10))
    steps = training.batches(100, generator(1))
    assert len(steps) == 10
    sizes = [len(step) for step in steps]
    assert len(set(sizes)) > 1
    assert 60 < sum(sizes) < 140
    shuffled = DpSgd(sampling="shuffle").local(LocalTraining(batch_size=10)).batches(100, generator(1))
    assert [len(step) for step in shuffled] == [10] * 10


def test_dp_sgd_noise_has_the_size_that_the_accountant_counts_on() -> None:
    rule = DpSgd(clip=0.5, noise_multiplier=2.0).local(LocalTraining(batch_size=25))
    assert isinstance(rule, GuardedTraining)
    zeros = {"a": torch.zeros(1_000_000)}
    noise = rule.rules[0].changed(zeros, 25, generator(3))["a"]
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 25, rel=0.02)


def test_batch_norm_and_single_samples_do_not_go_together() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    with pytest.raises(UsageError, match="single samples"):
        clipped_mean(model, blobs(4, 1).x, _one_hot, blobs(4, 1).y, 1.0, 4)


def test_smoothed_targets_shrink_what_a_sample_does() -> None:
    training = LabelSmoothing(amount=0.4).local(LocalTraining(algorithm="fedsgd", batch_size=8))
    model, batch = network(), blobs(8, 1)
    smooth = training.gradient_of(model, batch, generator(0))["head.bias"]
    probability = model(batch.x).softmax(1).mean(0)
    counts = torch.bincount(batch.y, minlength=5) / 8
    assert torch.allclose(smooth, probability - 0.6 * counts - 0.4 / 5, atol=1e-6)


def test_a_frozen_head_neither_moves_nor_leaves() -> None:
    for what, still in (("head", ("head.weight", "head.bias")), ("bias", ("head.bias",))):
        trace, _ = recorded(defenses=(FrozenHead(what=what),))  # type: ignore[arg-type]
        for message in trace.messages("update"):
            for name, tensor in message.tensors.items():
                assert bool(tensor.any()) is (name not in still)
        models = list(trace.messages("model"))
        assert all(torch.equal(models[0].tensors[name], models[-1].tensors[name]) for name in still)


def test_dropout_changes_training_and_not_the_model() -> None:
    model = network()
    hooks = len(list(model.children())[-1]._forward_pre_hooks)
    plain, dropped = trained_with(), trained_with(Dropout(rate=0.5))
    assert not torch.allclose(plain["head.weight"], dropped["head.weight"])
    assert len(list(model.children())[-1]._forward_pre_hooks) == hooks
    assert torch.equal(dropped["head.weight"], trained_with(Dropout(rate=0.5))["head.weight"])


def test_larger_batches_take_fewer_steps() -> None:
    assert LargerBatches(factor=4).local(SGD).schedule(64).steps == SGD.schedule(64).steps // 4
    assert LargerBatches(factor=4, scale_lr=True).local(SGD).lr == pytest.approx(0.4)


def test_defenses_are_composed_in_the_order_of_the_list() -> None:
    both = guarded(guarded(SGD, _rule(ClipNoise(per="step"))), _rule(LabelSmoothing()))
    assert isinstance(both, GuardedTraining)
    assert [type(rule).__name__ for rule in both.rules] == ["_EachStep", "_Smooth"]
    assert both.lr == SGD.lr


def _rule(defense: Any) -> Any:
    training = defense.local(LocalTraining())
    assert isinstance(training, GuardedTraining)
    return training.rules[0]


def test_mixed_classes_make_all_classes_equally_frequent() -> None:
    own = Examples(torch.rand(9, 6), torch.tensor([0] * 7 + [3] * 2))
    mixed = MixedClasses(level=1.0).data(own, blobs(60, 5), generator(1))
    assert torch.bincount(mixed.y, minlength=5).tolist() == [7] * 5
    assert torch.equal(mixed.x[:9], own.x)
    half = MixedClasses(level=0.5).data(own, blobs(60, 5), generator(1))
    assert torch.bincount(half.y, minlength=5).tolist() == [7, 3, 3, 3, 3]


def test_the_truth_is_what_a_client_holds_not_what_was_mixed_in() -> None:
    clients = [blobs(9, 1), blobs(12, 2)]
    trace = MemoryTrace()
    settings = Settings(rounds=1, training=LocalTraining(batch_size=4), defenses=(MixedClasses(),))
    Horizontal(network(), clients, settings, 3, 5, trace, public=blobs(60, 9)).run()
    for index, own in enumerate(clients):
        counts = trace.truth().get(Origin(0, f"client:{index}"), "label_counts")
        assert counts.tolist() == torch.bincount(own.y, minlength=5).tolist()
    assert [m.info["examples"] for m in trace.messages("update")] == [9, 12]
    with pytest.raises(UsageError, match="needs public samples"):
        Horizontal(network(), clients, settings, 3, 5)
