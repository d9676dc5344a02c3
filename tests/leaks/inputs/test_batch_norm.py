"""Batch norm in reconstruction: the client's mode is read off its message, and gradients are matched in that mode."""

import copy
from collections import OrderedDict
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from spine import CLASSES, attempt, recorded
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.dlg import DeepLeakage
from fedspill.leaks.inputs.errors import UnsoundMessage
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.grad_inversion import GradInversion
from fedspill.leaks.inputs.gradient_matching import (
    CERTAIN,
    GradientMatching,
    best_explanation,
    candidate_gradients,
    match_gradients,
)
from fedspill.leaks.inputs.idlg import ImprovedDeepLeakage
from fedspill.leaks.inputs.inputs import Reconstruction
from fedspill.leaks.inputs.inverting_gradients import InvertingGradients
from fedspill.leaks.inputs.most_likely_batch import defended_gradient
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, attacked_messages
from fedspill.leaks.inputs.sapag import Sapag
from fedspill.leaks.inputs.scoring.similarity import matched, psnr
from fedspill.leaks.inputs.search.batch_norm import BatchNorms, read_batch_norms
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, gradients_of
from fedspill.leaks.inputs.search.priors import BatchNormStatistics
from fedspill.leaks.inputs.search.recipes import dlg
from fedspill.leaks.inputs.search.search import Recipe, one_hot
from fedspill.messages import Message
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, View
from fedspill.training import LocalTraining, Schedule

LR = 0.05


@cache
def digits() -> Examples:
    data = make("datasets", "digits").load().train
    small = data.y < CLASSES
    return Examples(data.x[small], data.y[small])


def network(activation: type[nn.Module] = nn.Tanh, momentum: float | None = 0.1, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 8, 3, padding=1),
                norm1=nn.BatchNorm2d(8, momentum=momentum),
                act1=activation(),
                conv2=nn.Conv2d(8, 16, 3, padding=1, stride=2),
                norm2=nn.BatchNorm2d(16, momentum=momentum),
                act2=activation(),
                drop=nn.Dropout(dropout),
                flat=nn.Flatten(),
                head=nn.Linear(256, CLASSES),
            )
        )


def one_client_round(
    samples: int = 4, *, first: int = 20, model: nn.Module | None = None, **training: Any
) -> tuple[View, Examples]:
    """What a server sees of one client's round in a real federation, and what the client had, in its order."""
    own = digits().take(torch.arange(first, first + samples))
    options = {"lr": LR, "batch_size": samples, "shuffle": False, **training}
    trace, _ = recorded([own], model=model or network(), training=LocalTraining(**options), rounds=1)
    return view_of(trace, model or network()), own


def view_of(trace: MemoryTrace, model: nn.Module) -> View:
    known = {"architecture": partial(copy.deepcopy, model), "unlabelled_aux": digits().x[-50:]}
    return trace.view(CURIOUS_SERVER, knowledge=known)


def only_message(view: View) -> tuple[AttackedMessage, list[str]]:
    messages, notes = attacked_messages(view, 1, torch.Generator().manual_seed(0))
    return messages[0], notes


def missed(attacked: AttackedMessage, batch: Examples, contrast: float = 1.0) -> float:
    x, targets = contrast * batch.x.double(), one_hot(batch.y, CLASSES)
    return mismatch_up_to_scale(candidate_gradients(attacked, torch.float64), attacked.gradient_list, x, targets)[0]


def in_evaluation_mode(attacked: AttackedMessage) -> AttackedMessage:
    return replace(attacked, norms=BatchNorms())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_client_in_training_mode_is_matched_by_batch_statistics_and_by_nothing_else(algorithm: str) -> None:
    view, batch = one_client_round(algorithm=algorithm)
    attacked, notes = only_message(view)
    assert attacked.norms.by_batch == {"norm1", "norm2"}
    assert not any("buffers" in note for note in notes)
    assert missed(attacked, batch) < 1e-5
    assert missed(in_evaluation_mode(attacked), batch) > 0.3


def test_what_a_defended_client_would_send_is_computed_in_its_mode() -> None:
    view, batch = one_client_round()
    attacked, _ = only_message(view)
    x, targets = batch.x.double(), one_hot(batch.y, CLASSES)
    for one, near in ((attacked, True), (in_evaluation_mode(attacked), False)):
        sent = defended_gradient(one, [ClipNoise(clip=1e6)])(x, targets)
        off = torch.stack([(a - b).square().sum() for a, b in zip(sent, attacked.gradient_list, strict=True)]).sum()
        assert (float(off.detach()) < 1e-6) == near


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_client_with_frozen_batch_norms_is_matched_by_running_statistics(algorithm: str) -> None:
    view, batch = one_client_round(algorithm=algorithm, batch_norm="eval")
    attacked, _ = only_message(view)
    assert attacked.norms.by_batch == frozenset()
    assert missed(attacked, batch) < 1e-5
    assert attacked.can_vouch(batch.x.double())


def test_local_steps_are_unrolled_with_the_statistics_of_each() -> None:
    view, batch = one_client_round(8, batch_size=4)
    attacked, _ = only_message(view)
    assert attacked.steps == 2
    assert missed(attacked, batch) < 1e-5
    assert missed(in_evaluation_mode(attacked), batch) > 0.3
    other = Examples(batch.x[[0, 4, 2, 6, 1, 5, 3, 7]], batch.y[[0, 4, 2, 6, 1, 5, 3, 7]])
    assert missed(attacked, other) > 0.1  # the same samples, in other steps
    assert not attacked.can_vouch(batch.x.double())  # what two steps did to the buffers is not told apart


def test_restarts_in_one_stack_are_each_normalised_by_themselves() -> None:
    attacked, _ = only_message(one_client_round()[0])
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4, 1, 8, 8, generator=rng, dtype=torch.float64)
    targets = torch.rand(3, 4, CLASSES, generator=rng, dtype=torch.float64).softmax(-1)
    alone, by_steps = (
        gradients_of(attacked.as_client_ran),
        candidate_gradients(only_message(one_client_round(4, batch_size=2)[0])[0], torch.float64),
    )
    for gradients in (alone, by_steps):
        together = gradients(x, targets)
        for index in range(3):
            for stacked, single in zip(together, gradients(x[[index]], targets[[index]]), strict=True):
                assert torch.allclose(stacked[index], single[0], atol=1e-12)
    assert torch.allclose(slope(alone, x, targets), torch.cat([slope(alone, x[[i]], targets[[i]]) for i in range(3)]))


def slope(gradients: GradientFunction, x: Tensor, targets: Tensor) -> Tensor:
    """What a search descends along: how the size of the gradients changes with x."""
    x = x.clone().requires_grad_()
    size = torch.stack([g.square().sum() for g in gradients(x, targets)]).sum()
    return torch.autograd.grad(size, x)[0]


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_buffers_of_one_step_tell_the_statistics_of_its_batch(momentum: float | None) -> None:
    view, batch = one_client_round(model=network(momentum=momentum))
    attacked, _ = only_message(view)
    fed: dict[str, Tensor] = {}
    run = attacked.as_client_ran
    for name in ("norm1", "norm2"):
        run.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: fed.update({name: x[0]}))
    run(batch.x.double())
    for name, features in fed.items():
        mean, variance = attacked.norms.moments[name]
        assert torch.allclose(mean, features.mean((0, 2, 3)), atol=1e-5)
        assert torch.allclose(variance, features.var((0, 2, 3), unbiased=False), atol=1e-5)
    assert attacked.norms.mismatch(attacked.model, batch.x.double()) < 1e-4
    assert attacked.can_vouch(batch.x.double())


def test_a_gradient_is_blind_to_contrast_and_nobody_vouches_without_statistics() -> None:
    view, batch = one_client_round()
    attacked, _ = only_message(view)
    assert missed(attacked, batch, contrast=0.5) < 1e-3
    half = 0.5 * batch.x.double()
    assert attacked.norms.mismatch(attacked.model, half) > 0.3
    assert not attacked.can_vouch(half)
    assert torch.allclose(attacked.in_known_contrast(half), batch.x.double(), atol=1e-4)
    silent, _ = only_message(one_client_round(algorithm="fedsgd")[0])
    assert not silent.can_vouch(batch.x.double())
    assert torch.equal(silent.in_known_contrast(half), half)


@pytest.mark.parametrize("units", [24, 80])
def test_a_narrow_first_layer_hides_a_part_of_the_mean_for_which_nobody_vouches(units: int) -> None:
    layers = OrderedDict(
        flat=nn.Flatten(),
        first=nn.Linear(64, units),
        norm=nn.BatchNorm1d(units),
        act=nn.Tanh(),
        head=nn.Linear(units, CLASSES),
    )
    view, batch = one_client_round(model=nn.Sequential(layers))
    attacked, _ = only_message(view)
    weight = attacked.model.get_parameter("first.weight").detach()
    unseen = torch.eye(64, dtype=torch.float64) - torch.linalg.pinv(weight) @ weight
    shifted = Examples(batch.x.double() + 5 * unseen[7].reshape(1, 1, 8, 8), batch.y)
    assert missed(attacked, shifted) < 1e-4  # 5 times a direction that is nothing at all for 80 units
    assert attacked.norms.mismatch(attacked.model, shifted.x) < 1e-3
    assert attacked.can_vouch(shifted.x) == (units == 80)


def changed(view: View, model: nn.Module, **changes: Any) -> View:
    """The same messages, with updates whose buffers are changed, or cut where the change is None."""
    messages: list[Message] = list(view.get("model"))
    for m in view.get("update"):
        tensors = dict(m.tensors)
        for name in [name for name in m.tensors if "running" in name]:
            change = changes[name.rpartition(".")[2]]
            tensors[name] = tensors[name] if change is None else change(tensors[name])
            if change is None:
                del tensors[name]
        messages.append(Message(m.round, m.sender, m.receiver, m.kind, tensors, m.info))
    protocol = {word: view.knows(word) for word in ("batch_size", "local_lr")}
    return view_of(MemoryTrace.of(messages, protocol | {"classes": CLASSES}), model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (None, ""),
        (torch.zeros_like, ""),
        (lambda t: t * torch.nan, "hold NaN"),
        (lambda t: t[:3], "another shape"),
        (lambda t: t - 100, "not those of 1 steps"),
    ],
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_without_buffers_that_can_be_read_the_gradient_tells_the_mode(mode: str, change: Any, reason: str) -> None:
    view, batch = one_client_round(batch_norm=mode)
    attacked, notes = only_message(changed(view, network(), running_mean=change, running_var=change))
    if "not those" in reason:
        assert attacked.norms.by_batch  # they moved: that much is read
    else:
        assert bool(attacked.norms.by_batch) == (mode == "train")
        assert missed(attacked, batch) < 1e-5
    assert not attacked.norms.moments
    assert bool(reason) == any("buffers" in note for note in notes)
    assert not reason or any(reason in note for note in notes)


def test_a_step_of_one_sample_that_batch_norm_cannot_train_on_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, CLASSES))
    sent = {"2.running_mean": torch.ones(16), "2.running_var": torch.ones(16)}
    with pytest.raises(UnsoundMessage, match="one sample"):
        read_batch_norms(model.double(), sent, {}, Schedule(1, 1), (1, 8, 8), steps_known=True)
    head = OrderedDict(flat=model[0], first=model[1], norm=model[2], act=model[3], head=model[4])
    view, _ = one_client_round(4, model=nn.Sequential(head).float(), algorithm="fedsgd")
    lies = [Message(m.round, m.sender, m.receiver, m.kind, m.tensors, {"examples": 1}) for m in view.get("gradient")]
    trace = MemoryTrace.of([*view.get("model"), *lies], {"batch_size": 4, "local_lr": LR, "classes": CLASSES})
    for attack in (Reconstruction(), DeepLeakage(steps=5)):
        refused = attempt(lambda attack=attack: attack(view_of(trace, nn.Sequential(head).float()), seed=1))
        assert isinstance(refused, NotApplicable)
        assert "one sample" in str(refused)


def quality(samples: Tensor, real: Tensor) -> float:
    if not len(samples):
        return 0.0
    return float(psnr(samples.clamp(0, 1)[matched(samples.clamp(0, 1), real)], real).mean())


@pytest.mark.parametrize("samples", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_reconstruction_gains_by_the_right_mode(samples: int) -> None:
    for first in (20, 60):
        view, batch = one_client_round(samples, first=first)
        attacked, _ = only_message(view)
        right, wrong = (
            match_gradients(one, (1, 8, 8), CLASSES, view, torch.Generator().manual_seed(0), moves=200)
            for one in (attacked, in_evaluation_mode(attacked))
        )
        assert quality(right.samples, batch.x) > 80
        assert bool(right.certified.all())
        assert quality(wrong.samples, batch.x) < 15
        assert not bool(wrong.certified.any())


def test_a_gradient_that_is_explained_in_another_contrast_is_not_vouched_for() -> None:
    view, batch = one_client_round(1)
    attacked, _ = only_message(view)
    answer = best_explanation([dlg(200)], attacked, (1, 8, 8), view, torch.Generator().manual_seed(0), batch.y)
    assert missed(attacked, Examples(answer.samples, batch.y)) < CERTAIN
    assert quality(answer.samples, batch.x) < 20
    assert not bool(answer.certified.any())


def test_one_sample_by_its_features_comes_back_in_its_own_contrast() -> None:
    head = OrderedDict(
        conv1=nn.Conv2d(1, 8, 3, padding=1),
        norm=nn.BatchNorm2d(8),
        act1=nn.ReLU(),
        conv2=nn.Conv2d(8, 32, 3, padding=1, stride=2),
        act2=nn.ReLU(),
        flat=nn.Flatten(),
        head=nn.Linear(512, CLASSES),
    )
    view, batch = one_client_round(1, model=nn.Sequential(head))
    guess = Reconstruction()(view, seed=1)
    assert quality(guess.samples[0], batch.x) > 60
    assert bool(guess.certified[0].all())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_grad_inversion_is_drawn_to_the_statistics_of_the_batch_where_they_were_sent(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, _ = one_client_round(algorithm=algorithm)
    attacked, _ = only_message(view)
    recipes: list[Recipe] = []
    written = GradInversion.recipe
    monkeypatch.setattr(GradInversion, "recipe", lambda *given: recipes.append(written(*given)) or recipes[-1])
    GradInversion(steps=2, group=1)(view, seed=1)
    (prior,) = [prior for prior in recipes[0].priors if isinstance(prior, BatchNormStatistics)]
    for name in ("norm1", "norm2"):
        target, handed = prior.model.get_submodule(name), attacked.model.get_submodule(name)
        assert isinstance(target, nn.BatchNorm2d)
        assert isinstance(handed, nn.BatchNorm2d)
        assert target.running_var is not None
        expected = attacked.norms.moments[name][1] if algorithm == "fedavg" else handed.running_var
        assert torch.allclose(target.running_var.double(), expected)


PUBLISHED = [
    DeepLeakage(steps=5),
    ImprovedDeepLeakage(steps=5),
    InvertingGradients(steps=5),
    Sapag(steps=5),
    GradInversion(steps=5, group=2),
]


@pytest.mark.parametrize(
    "attack", [*PUBLISHED, Reconstruction(most_matched=2, moves=5)], ids=lambda attack: attack.name
)
def test_on_batch_norm_and_dropout_every_attack_searches_and_shows_no_picture_that_explains_too_little(
    attack: Attack,
) -> None:
    """Five steps are far too few, in every kind of training: the search was made, and its note says why it is empty."""
    for training in ({}, {"algorithm": "fedsgd"}, {"batch_size": 1}, {"epochs": 2}):
        view, _ = one_client_round(2, model=network(nn.ReLU, dropout=0.3), **training)
        guess = attack(view, seed=1)
        assert guess.answered.tolist() == [True]
        assert [len(samples) for samples in guess.samples] == [0]
        assert "unexplained" in guess.notes[-1]


@pytest.mark.parametrize("attack", PUBLISHED, ids=lambda attack: attack.name)
def test_on_batch_norm_and_dropout_a_picture_that_explains_little_is_not_vouched_for(attack: GradientMatching) -> None:
    view, _ = one_client_round(2, model=network(nn.ReLU, dropout=0.3))
    guess = replace(attack, unexplained=float("inf"))(view, seed=1)
    assert guess.samples[0].shape == (2, 1, 8, 8)
    assert not bool(guess.certified[0].any())
