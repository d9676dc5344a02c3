"""Attackers of the other families who know the defense: inputs, planted neurons, groups. They beat the unaware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedspill.attack import ActiveAttack
from fedspill.audit.planted_run import run_planted
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.federation.local import state_of
from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.groups.metrics import RankCorrelation
from fedspill.leaks.groups.whole_determination import WholeDetermination
from fedspill.leaks.inputs.metrics import InputsRecognisable
from fedspill.leaks.inputs.most_likely_batch import InputDistribution, defended_gradient
from fedspill.leaks.inputs.observed_gradients import attacked_messages
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.leaks.membership.guess import Membership
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.read_behind_noise import neuron_gradient, with_dead_zone
from fedspill.registry import make
from fedspill.roc_area import restricted_area
from fedspill.threat import CURIOUS_CLIENT, CURIOUS_SERVER, MALICIOUS_SERVER
from fedspill.trace import MemoryTrace, View
from fedspill.training import gradient

NOISE = {"name": "clip-noise", "clip": 10.0, "sigma": 0.001}


def gradients_sent(defense: dict[str, Any], **more: Any) -> tuple[MemoryTrace, Deployment]:
    """Clients that send the gradient of three digits, behind a defense."""
    plan = {
        "seed": 3, "model": {"name": "mlp", "widths": [48, 48], "activation": "tanh"},
        "partition": {"name": "uniform-batch", "batch": 3}, "federation": {"clients": 3, "rounds": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 3},
        "adversary_data": {"per_class": 40}, "defenses": [defense], **more,
    }  # fmt: skip
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return trace, deployment


def server(trace: MemoryTrace, deployment: Deployment, *without: str) -> View:
    known = {word: what for word, what in deployment.knowledge().items() if word not in without}
    return trace.view(CURIOUS_SERVER, knowledge=known)


def test_inputs_come_back_through_noise_to_who_knows_of_it() -> None:
    trace, deployment = gradients_sent(NOISE)
    truth = trace.truth().beside(deployment.shares.clients)
    attack = make("attacks", "inputs", {"origins": 1, "peels": 2})
    told = InputsRecognisable().score(attack(server(trace, deployment), seed=1), truth)
    assert told.value == 1
    unaware = attack(server(trace, deployment, "defense"), seed=1)
    assert not bool(unaware.answered.any()) or InputsRecognisable().score(unaware, truth).value < 1


@pytest.mark.slow
def test_nothing_comes_back_where_noise_is_as_large_as_the_gradient() -> None:
    trace, deployment = gradients_sent({**NOISE, "sigma": 1.0})
    guess = make("attacks", "inputs", {"origins": 1})(server(trace, deployment), seed=1)
    assert InputsRecognisable().score(guess, trace.truth().beside(deployment.shares.clients)).value == 0


@pytest.mark.parametrize(
    "defense",
    [
        {"name": "clip-noise", "clip": 0.5, "sigma": 1e-9},
        {"name": "dp-sgd", "clip": 0.3, "noise_multiplier": 1e-9, "sampling": "shuffle"},
    ],
    ids=lambda defense: str(defense["name"]),
)
def test_a_candidate_is_defended_as_clients_defend(defense: dict[str, Any]) -> None:
    trace, deployment = gradients_sent(defense)
    view = server(trace, deployment)
    (attacked, *_), _ = attacked_messages(view, 3, torch.Generator().manual_seed(0))
    own = deployment.shares.clients[int(attacked.of.sender.partition(":")[2])]
    sent = defended_gradient(attacked, view.knows("defense"))(own.x.double(), one_hot(own.y, 10).double())
    for found, seen in zip(sent, attacked.gradient_list, strict=True):
        assert torch.allclose(found, seen, atol=1e-6)


def test_the_kind_of_inputs_has_the_means_and_spread_of_the_auxiliary_ones() -> None:
    trace, deployment = gradients_sent(NOISE)
    distribution = InputDistribution.known_to(server(trace, deployment), 10)
    assert distribution is not None
    x, y = deployment.shares.auxiliary.x.flatten(1).double(), deployment.shares.auxiliary.y
    assert torch.allclose(distribution.means[3], x[y == 3].mean(0))
    spread = float((distribution.root @ distribution.root.T).trace())
    assert 0.9 < spread / float((x - distribution.means[y]).var(0).sum()) < 1.1


PEOPLE: dict[str, Any] = {
    "seed": 5, "data": "made-up-people", "model": {"name": "mlp", "widths": [48, 24], "logits": 1},
    "partition": {"name": "iid", "samples": 40}, "training": {"lr": 0.05, "batch_size": 20},
    "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
    "adversary_data": {"per_class": 20, "shadow": 100},
    "targets": {"attribute": "secret", "members": 16, "others": 16, "after": 1},
}  # fmt: skip


def test_a_planted_neuron_is_read_through_noise_that_hides_its_bias() -> None:
    plan = check_plan({**PEOPLE, "defenses": [{"name": "clip-noise", "clip": 10.0, "sigma": 0.005}]}, "a test")
    attack = make("attacks", "planted-membership")
    assert isinstance(attack, ActiveAttack)
    trace, known = run_planted(attack, MALICIOUS_SERVER, Deployment.of(plan))
    areas = []
    for without in ((), ("defense",)):
        view = trace.view(MALICIOUS_SERVER, knowledge={k: v for k, v in known.items() if k not in without})
        guess = attack(view, seed=1)
        assert isinstance(guess, Membership)
        member = torch.stack([trace.truth().get(origin, "target_members")[0] for origin in guess.of]) > 0
        areas.append(restricted_area(member, guess.scores))
    assert areas[0] > 0.9
    assert areas[1] < areas[0] - 0.1


def test_what_a_record_sends_to_a_neuron_is_its_gradient() -> None:
    network: nn.Module = make("models", "mlp", {"widths": [6, 5]}).build((4,), 3, seed=1)
    dense, state = read_dense_network(network), state_of(network)
    record = torch.randn(4, generator=torch.Generator().manual_seed(2))
    label = torch.tensor(2)
    whole = gradient(network, Examples(record[None], label[None]))
    for row in range(5):
        expected = torch.cat(
            [whole[dense.weight(1)][row], whole[dense.bias(1)][row : row + 1], whole[dense.weight(2)][:, row]]
        )
        assert torch.allclose(neuron_gradient(dense, state, record, label, row).float(), expected, atol=1e-6)


def test_a_dead_zone_silences_measuring_units_at_the_target_alone() -> None:
    network: nn.Module = make("models", "mlp", {"widths": [4, 3]}).build((2,), 2, seed=1)
    dense, state = read_dense_network(network), {name: tensor.clone() for name, tensor in state_of(network).items()}
    state[dense.weight(1)][2] = torch.tensor([-1.0, -1.0, 0.0, 0.0])
    shadow = torch.tensor([[3.0, 4.0], [-4.0, 3.0]])
    state[dense.weight(0)][:2] = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    state[dense.bias(0)][:2] = 0
    quiet = with_dead_zone(dense, state, 1, 1, shadow)
    z = dense.pre_activations(quiet, torch.cat([torch.zeros(1, 2), shadow]), 0)[:, :2]
    assert bool((z[0] < 0).all())
    assert bool((z[1:].max(1).values > 0).all())
    assert torch.equal(quiet[dense.bias(0)][2:], state[dense.bias(0)][2:])


def watched_groups(defense: dict[str, Any] | None, **options: Any) -> tuple[float, View]:
    plan = {
        "seed": 9, "model": {"name": "mlp", "widths": [32]}, "federation": {"clients": 6, "rounds": 6},
        "partition": {"name": "main-labels", "low": 2, "high": 4, "per_label": 30, "minor": 0, "reuse": True},
        "training": {"lr": 0.1, "batch_size": 10}, "adversary_data": {"per_class": 30},
        "defenses": [defense] if defense else [],
    }  # fmt: skip
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    view = trace.view(CURIOUS_CLIENT, me="client:0", knowledge=deployment.knowledge())
    guess = replace(WholeDetermination(), **options)(view, seed=1)
    assert isinstance(guess, Groups)
    return RankCorrelation().score(guess, trace.truth()).value, view


def test_a_frozen_head_does_not_hide_the_groups_from_who_knows_of_it() -> None:
    found, view = watched_groups({"name": "frozen-head"})
    assert found > 0.3
    assert "defense" in view.used


def test_smoothed_labels_are_read_with_smoothed_bases() -> None:
    found, _ = watched_groups({"name": "label-smoothing", "amount": 0.5})
    plain, _ = watched_groups(None)
    assert found > plain - 0.15


def test_who_has_no_answer_to_a_defense_is_not_said_to_know_it() -> None:
    _, view = watched_groups({"name": "guard"})
    assert "defense" not in view.used
