"""The malicious server: what it plants, what it reads in sums alone, and that planted neurons do what they are for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from audit_kit import controls_of
from spine import network
from torch import Tensor, nn

from fedspill.audit.matrix import Pair
from fedspill.audit.planted_run import run_planted
from fedspill.data.made_up_people import MadeUpPeople
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.deployment.targets import draw_targets
from fedspill.errors import NotApplicable, UsageError
from fedspill.federation.local import load, state_of
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.planting.closed_form import NeuronDesign, neurons_of_target, plant_neurons
from fedspill.planting.dense_network import DenseNetwork, read_dense_network, unit_gradients
from fedspill.planting.imputation import impute
from fedspill.planting.read_sums import contrast
from fedspill.planting.targets import Targets
from fedspill.planting.trained_neurons import AaiRecipe, AmiRecipe, align, train_aai, train_ami
from fedspill.registry import make, options_of
from fedspill.roc_area import area_interval, restricted_area
from fedspill.seeds import generator
from fedspill.threat import MALICIOUS_SERVER
from fedspill.training import Tensors, gradient

PEOPLE = MadeUpPeople(people=600).load()
SECRET = PEOPLE.columns.index("secret")
KINDS = {"relu": {}, "elu": {"activation": "elu"}, "elu -2": {"activation": "elu", "alpha": -2.0}}
every_kind = pytest.mark.parametrize("kind", KINDS)


def person_net(
    kind: str, widths: tuple[int, ...] = (48, 16), logits: int | None = 1
) -> tuple[nn.Module, DenseNetwork, Tensors]:
    model = network(classes=2, features=14, widths=list(widths), logits=logits, **KINDS[kind])
    return model, read_dense_network(model), {name: tensor.clone() for name, tensor in state_of(model).items()}


def wanted(records: Examples) -> Targets:
    x = records.x.clone()
    x[:, SECRET] = 0
    return Targets(x, records.y, 0, SECRET, (SECRET,))


def shadow() -> Tensor:
    return PEOPLE.test.x


@every_kind
@pytest.mark.parametrize("logits", [1, None])
def test_the_planted_pair_fires_for_its_target_alone_and_for_its_value(kind: str, logits: int | None) -> None:
    _, dense, state = person_net(kind, logits=logits)
    people = PEOPLE.train
    targets = wanted(people.take(torch.arange(12)))
    for index in range(12):
        planted = plant_neurons(dense, state, targets, [index], shadow(), NeuronDesign(), generator(0, "p", index))
        s = dense.pre_activations(planted, people.x, 1)[:, neurons_of_target(16, 2, 0, 1)]
        fires = (s > 0).nonzero().tolist()
        assert fires == [[index, int(people.x[index, SECRET])]]
        g = unit_gradients(dense, planted, people.x, people.y)[:, -2:].mean(0)
        assert int(g.argmax()) == int(people.x[index, SECRET]), "the neuron of the true value moves, upwards"


@every_kind
def test_the_analytic_signal_is_the_gradient_of_the_bias(kind: str) -> None:
    model, dense, state = person_net(kind)
    people = PEOPLE.train.take(torch.arange(50))
    planted = plant_neurons(dense, state, wanted(people), [3], shadow(), NeuronDesign(output=1.0), generator(0, "p"))
    load(model, planted)
    found = unit_gradients(dense, planted, people.x, people.y).mean(0)
    assert torch.allclose(found, gradient(model, people)[dense.bias(1)], atol=1e-6)


def test_predictions_stay_nearly_as_they_were_where_columns_are_zeroed_and_not_where_they_are_kept() -> None:
    _, dense, state = person_net("relu")
    before = dense.pre_activations(state, PEOPLE.test.x, 2)
    planted = plant_neurons(dense, state, wanted(PEOPLE.train), [0], shadow(), NeuronDesign(), generator(0, "p"))
    after = dense.pre_activations(planted, PEOPLE.test.x, 2)
    kept = replace(NeuronDesign(), columns="kept")
    wild = plant_neurons(dense, state, wanted(PEOPLE.train), [0], shadow(), kept, generator(0, "p"))
    assert float((after - before).abs().max()) < 1
    assert float((dense.pre_activations(wild, PEOPLE.test.x, 2) - before).abs().max()) > 1


def test_several_targets_at_once_have_neurons_of_their_own() -> None:
    _, dense, state = person_net("elu -2", widths=(64, 32))
    targets = wanted(PEOPLE.train.take(torch.arange(6)))
    shape = NeuronDesign(directions=4)
    planted = plant_neurons(dense, state, targets, range(6), shadow(), shape, generator(0, "p"))
    s = dense.pre_activations(planted, PEOPLE.train.x[:6], 1)
    for place in range(6):
        mine = s[:, neurons_of_target(32, 2, place, 6)]
        assert (mine > 0).nonzero().tolist() == [[place, int(PEOPLE.train.x[place, SECRET])]]
    with pytest.raises(NotApplicable, match="first-layer units"):
        plant_neurons(dense, state, targets, range(6), shadow(), NeuronDesign(directions=8), generator(0, "p"))


def test_the_published_training_reaches_its_goals() -> None:
    _, dense, state = person_net("elu -2", widths=(96, 8))
    targets = wanted(PEOPLE.train.take(torch.arange(2)))
    up, down = (targets.completed(value, shadow())[:, None] for value in (1, 0))
    made = train_aai(dense, state, up, down, shadow(), AaiRecipe(epochs=1500))
    for run in range(2):
        planted = made.install(dense, state, run)
        align(dense, planted, -1, 1)
        s = dense.pre_activations(planted, torch.cat([up[run], down[run]]), 1)[:, -1]
        assert float(s[0]) > 300
        assert -60 < float(s[1]) < 30
        assert float(dense.pre_activations(planted, shadow(), 1)[:, -1].median()) < -50
        assert float(planted[dense.weight(2)][0, -1]) <= 0, "aligned with label 1"
    _, relu, start = person_net("relu", widths=(96, 8))
    pair = torch.cat([down, up], 1)
    made = train_ami(relu, start, pair, shadow(), AmiRecipe(epochs=400, lr=5e-3))
    planted = made.install(relu, start, 0)
    s = relu.pre_activations(planted, pair[0], 1)[:, -2:]
    assert (s > 0).tolist() == [[True, False], [False, True]]


def test_the_contrast_does_not_depend_on_the_client_and_counts_equal_records() -> None:
    """The same records weigh more at a large client; targets are compared with one another all the same."""
    small, large = torch.tensor([[0.0, 1.0]]), torch.tensor([[500.0, 0.0]])
    assert contrast(torch.cat([small, large])).tolist() == pytest.approx([1, -1], abs=1e-3)
    assert contrast(torch.tensor([[1.0, 3.0]])).tolist() == pytest.approx([0.5], abs=1e-5)
    assert contrast(torch.tensor([[-9.0, 1.0], [-1.0, -2.0]])).tolist() == pytest.approx([1, 0], abs=1e-5)
    assert contrast(torch.zeros(3, 2)).tolist() == [0, 0, 0]
    values, sizes = torch.arange(40) % 2, 10 ** torch.linspace(0, 3, 40)
    signal = torch.stack([sizes * (1 - values), sizes * values], 1)
    signal[3] = 500 * torch.tensor([0.6, 0.4])  # more records of the other value equal this target, at a large client
    assert restricted_area(values > 0, contrast(signal)) > restricted_area(values > 0, signal[:, 1] - signal[:, 0])


def test_imputation_learns_what_the_known_columns_tell_and_no_more() -> None:
    rng = torch.Generator().manual_seed(0)
    known = torch.randn(600, 3, generator=rng)
    told = (known[:, 0] > 0).float()
    rows = torch.cat([known, told[:, None], 1 - told[:, None]], 1)  # the last column gives the secret away
    masked = rows[:100].clone()
    masked[:, 3:] = 0
    targets = Targets(masked, torch.zeros(100, dtype=torch.int64), 0, 3, (3, 4))
    for imputer in ("logistic", "boosting"):
        chance = impute(targets, rows[100:], imputer)  # type: ignore[arg-type]
        assert restricted_area(told[:100] > 0, chance) > 0.95
    shuffled = rows[100:].clone()
    shuffled[:, 3:] = shuffled[torch.randperm(500, generator=rng), 3:]
    assert restricted_area(told[:100] > 0, impute(targets, shuffled)) < 0.8, "siblings are masked, nothing is left"


def test_the_restricted_area_is_that_of_scikit_learn_and_its_interval_is_no_point() -> None:
    from sklearn.metrics import roc_auc_score

    rng = torch.Generator().manual_seed(1)
    for _ in range(20):
        true = torch.rand(30, generator=rng) < 0.5
        scores = (torch.randn(30, generator=rng) + true).round(decimals=1)
        assert restricted_area(true, scores) == pytest.approx(roc_auc_score(true, scores, max_fpr=0.25))
    low, high = area_interval(torch.arange(16) > 7, torch.arange(16.0), 0.25)
    assert high == 1
    assert 0.5 < low < 0.8


PLAN: dict[str, Any] = {**ATTRIBUTES.control, "targets": {"attribute": "secret", "members": 12, "others": 4}, "seed": 3}


def test_a_planted_run_sends_what_it_plants_repeats_and_sees_sums_only() -> None:
    deployment = Deployment.of(check_plan(PLAN, "test"))
    attack = make("attacks", "planted")
    trace, knowledge = run_planted(attack, MALICIOUS_SERVER, deployment)
    again, _ = run_planted(attack, MALICIOUS_SERVER, deployment)
    assert {message.kind for message in trace.messages()} == {"model", "aggregate"}
    models = list(trace.messages("model"))
    assert len(models) == 2 + 16
    biggest = [float(message.tensors["fc2.weight"].abs().max()) for message in models]
    assert max(biggest[:2]) < 1 < min(biggest[2:]), "honest rounds first, then what was planted"
    for first, second in zip(models, again.messages("model"), strict=True):
        assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    targets = knowledge["targets"]
    assert not bool(targets.x[:, targets.column].any()), "the adversary is not told the secret"


def test_targets_mask_the_whole_attribute_and_are_balanced() -> None:
    plan = check_plan({**PLAN, "targets": {"attribute": "job=job2", "members": 10, "others": 6}}, "test")
    deployment = Deployment.of(plan)
    drawn = draw_targets(plan, deployment.dataset, deployment.shares.clients)
    group = next(g for g in deployment.dataset.groups if drawn.targets.column in g)
    assert drawn.targets.masked == group
    assert not bool(drawn.targets.x[:, list(group)].any())
    assert int(drawn.values.sum()) == 8
    assert int(drawn.members.sum()) == 10
    with pytest.raises(UsageError, match="not yes or no"):
        Deployment.of(check_plan({**PLAN, "targets": {"attribute": "measure0"}}, "test"))


@pytest.mark.parametrize("name", ["planted", "planted-membership"])
def test_the_controls_of_closed_form_attacks_pass(name: str) -> None:
    outcome = controls_of(Pair(name, "malicious-server", options_of(make("attacks", name))))
    assert outcome.failure() == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # they train for minutes
@pytest.mark.parametrize("name", ["aai", "mia2aia", "ami"])
def test_the_controls_of_trained_attacks_pass(name: str) -> None:
    outcome = controls_of(Pair(name, "malicious-server", options_of(make("attacks", name))))
    assert outcome.failure() == ""


def test_networks_that_are_no_chain_of_dense_layers_are_refused() -> None:
    for model in (network(widths=[8], activation="tanh"), nn.Sequential(nn.Linear(3, 2)), nn.Conv2d(1, 1, 1)):
        with pytest.raises(NotApplicable, match="A neuron can be planted in"):
            read_dense_network(model)


def test_rounds_beyond_the_last_target_look_for_none() -> None:
    targets = Targets(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64), first=2)
    assert [targets.group(number, 2).tolist() for number in (1, 2, 3, 4, 5, 9)] == [[], [0, 1], [2, 3], [4], [], []]
