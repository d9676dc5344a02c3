"""Reconstruction attacks by a view: what they read, what they refuse, how they score, and the published ones' order."""

from typing import Any

import pytest
import torch
from spine import attempt

from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.dlg import DeepLeakage
from fedspill.leaks.inputs.inputs import Reconstruction, unsure
from fedspill.leaks.inputs.inverting_gradients import InvertingGradients
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.metrics import InputsPsnr, InputsRecovered
from fedspill.leaks.inputs.observed_gradients import RecoveredInputs
from fedspill.leaks.inputs.sapag import Sapag
from fedspill.messages import Message
from fedspill.metric import Score
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, View


def recorded(**plan: Any) -> tuple[MemoryTrace, Deployment]:
    deployment = Deployment.of(check_plan({"seed": 3, **INPUTS.control, **plan}, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return trace, deployment


def view_of(trace: MemoryTrace, deployment: Deployment) -> View:
    return trace.view(CURIOUS_SERVER, knowledge=deployment.knowledge())


def recovered(guess: Any, trace: MemoryTrace, deployment: Deployment) -> Score:
    return InputsRecovered().score(guess, trace.truth().beside(deployment.shares.clients))


def test_fedsgd_and_fedavg_come_back_whole() -> None:
    for training in ({"algorithm": "fedsgd", "batch_size": 6}, {"lr": 0.1, "batch_size": 2}):
        trace, deployment = recorded(partition={"name": "uniform-batch", "batch": 6}, training=training)
        guess = Reconstruction()(view_of(trace, deployment), seed=1)
        assert recovered(guess, trace, deployment).value > 0.9
        # Where a walk through local steps ends early, nobody vouches for the last one that was found.
        for certified in guess.certified:
            assert bool(certified.all()) or (len(certified) < 6 and bool(certified[:-2].all()))


def test_it_used_no_data_of_its_own_but_the_shape_of_an_input() -> None:
    trace, deployment = recorded()
    view = view_of(trace, deployment)
    Reconstruction()(view, seed=1)
    assert "aux_data" not in view.used
    assert view.used >= {"architecture"}


def test_where_it_does_not_apply_it_says_why_and_returns_no_picture() -> None:
    trace, deployment = recorded(
        partition={"name": "uniform-batch", "batch": 40}, training={"lr": 0.1, "batch_size": 8}
    )
    guess = Reconstruction()(view_of(trace, deployment), seed=1)
    assert not bool(guess.answered.any())
    assert all(len(samples) == 0 for samples in guess.samples)
    assert any("do not fit into the first two layers" in note for note in guess.notes)
    assert recovered(guess, trace, deployment).status == "unscored"


def test_only_a_bounded_number_of_messages_is_looked_at_and_that_is_noted() -> None:
    trace, deployment = recorded()
    guess = Reconstruction(origins=2)(view_of(trace, deployment), seed=1)
    assert len(guess.of) == 2
    assert any("2 of 6 messages were looked at" in note for note in guess.notes)


def changed(trace: MemoryTrace, change: Any) -> MemoryTrace:
    messages = [
        Message(m.round, m.sender, m.receiver, m.kind, {n: change(t) for n, t in m.tensors.items()}, m.info)
        if m.kind == "gradient"
        else m
        for m in trace.messages()
    ]
    return MemoryTrace.of(messages, trace.protocol)


@pytest.mark.parametrize(
    "attack", [Reconstruction(origins=2), DeepLeakage(origins=1, steps=60), InvertingGradients(origins=1, steps=60)]
)
def test_nan_zero_and_noise_give_no_picture_with_a_score(attack: Any) -> None:
    trace, deployment = recorded()
    for bad in (lambda t: t * torch.nan, torch.zeros_like):
        refused = attempt(lambda bad=bad: attack(view_of(changed(trace, bad), deployment), seed=1))
        assert isinstance(refused, NotApplicable)
    rng = torch.Generator().manual_seed(0)
    noise = changed(trace, lambda t: t.abs().mean() * torch.randn(t.shape, generator=rng))
    guess = attack(view_of(noise, deployment), seed=1)
    assert not any(bool(certified.any()) for certified in guess.certified)
    score = InputsRecovered().score(guess, trace.truth().beside(deployment.shares.clients))
    assert score.status == "unscored" or score.value == 0


def test_the_gradient_of_another_model_gives_nothing() -> None:
    trace, deployment = recorded()
    other, _ = recorded(seed=99)
    messages = [m for m in trace.messages("gradient")] + list(other.messages("model"))
    guess = Reconstruction(origins=2)(view_of(MemoryTrace.of(messages, trace.protocol), deployment), seed=1)
    assert not any(bool(certified.any()) for certified in guess.certified)
    assert recovered(guess, trace, deployment).value == 0


def test_published_attacks_on_one_task_keep_their_order() -> None:
    """One sample, labels read off: the cosine succeeds, SAPAG's sum of squares does not move."""
    trace, deployment = recorded(partition={"name": "uniform-batch", "batch": 1})
    truth = trace.truth().beside(deployment.shares.clients)
    psnr = {}
    for name, attack in {
        "inverting": InvertingGradients(origins=2, steps=400),
        "sapag": Sapag(origins=2, steps=200, per_entry=False, unexplained=float("inf")),
    }.items():
        psnr[name] = InputsPsnr().score(attack(view_of(trace, deployment), seed=1), truth).value
    assert psnr["sapag"] < 20 < psnr["inverting"]


def test_published_attacks_leave_larger_batches_alone() -> None:
    trace, deployment = recorded(
        partition={"name": "uniform-batch", "batch": 9}, training={"algorithm": "fedsgd", "batch_size": 9}
    )
    guess = InvertingGradients()(view_of(trace, deployment), seed=1)
    assert not bool(guess.answered.any())
    assert any("most_samples" in note for note in guess.notes)


def test_matching_is_tried_beside_exact_recovery_where_that_is_unsure() -> None:
    found, none = torch.zeros(1, 4), torch.zeros(0, 1)
    yes, no = torch.tensor([True]), torch.tensor([False])
    assert unsure(RecoveredInputs.none("does not apply", tried=False))
    assert unsure(RecoveredInputs(found, no))
    assert not unsure(RecoveredInputs(found, yes))
    assert not unsure(
        RecoveredInputs(none, torch.zeros(0, dtype=torch.bool))
    )  # it was tried, and there is nothing to find
