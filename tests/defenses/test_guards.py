"""Guards on the client: what they let pass, what they stop, what they remember, and that nobody is locked out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from spine import blobs, federation, network
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import ClientContext
from fedspill.defenses.badacc import BadAcc
from fedspill.defenses.badauc import BadAuc
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.guard import Guard, recalled
from fedspill.defenses.model_checks.change_statistics import read_change
from fedspill.defenses.model_checks.isolating_units import contributors
from fedspill.defenses.model_checks.layer_change import layer_change
from fedspill.defenses.model_checks.own_data_trial import roc_area
from fedspill.defenses.model_checks.thresholds import (
    CEILING,
    FLOOR,
    KEPT,
    PRIOR_MIDDLE,
    PRIOR_SPREAD,
    History,
    bounds,
    ordinary,
)
from fedspill.defenses.wadm import Wadm, divergences
from fedspill.errors import UsageError
from fedspill.federation.local import state_of, train
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.planting.closed_form import NeuronDesign, plant_neurons
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.targets import Targets
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors, gradient

CLIENTS = [blobs(60, seed) for seed in range(4)]
TRAINING = LocalTraining(lr=0.1, batch_size=10, epochs=2)


def deep(**options: Any) -> nn.Module:
    return network(widths=[32, 16], **options)


def benign(rounds: int, seed: int = 3, **options: Any) -> list[Tensors]:
    """The models of a benign federation, round by round."""
    made = federation(CLIENTS, model=deep(seed=seed), training=TRAINING, seed=seed, rounds=rounds, **options)
    states = []
    for number in range(rounds):
        states.append({name: tensor.clone() for name, tensor in state_of(made.model).items()})
        made.round(number)
    return states


def message(number: int, state: Tensors) -> Message:
    return Message(number, SERVER, EVERYONE, "model", state)


def planted(state: Tensors, index: int = 0) -> Tensors:
    records = CLIENTS[0]
    shadow = blobs(200, 77).x
    targets = Targets(records.x, records.y)
    return plant_neurons(
        read_dense_network(deep()), state, targets, [index], shadow, NeuronDesign(), generator(0, "plant", index)
    )


def shown(guard: Guard, states: list[Tensors]) -> tuple[dict[str, Tensor], Message | None, list[str]]:
    """What the guard remembers, accepted last and did after seeing these models in order."""
    memory: dict[str, Tensor] = {}
    previous, actions = None, []
    for number, state in enumerate(states):
        verdict = guard.incoming(message(number, state), previous, ClientContext(memory))
        memory = dict(verdict.memory) if verdict.memory is not None else memory
        previous = message(number, state) if verdict.action == "accept" else verdict.model
        actions.append(verdict.action)
    return memory, previous, actions


def test_benign_rounds_pass() -> None:
    for seed in (3, 4, 5):
        assert shown(Guard(), benign(10, seed))[2] == ["accept"] * 10


@pytest.mark.parametrize("after", [2, 5, 9])
def test_a_planted_model_is_rolled_back_whole_and_the_reason_is_told(after: int) -> None:
    states = benign(after + 1)
    memory, previous, _ = shown(Guard(), states[:after])
    assert previous is not None
    for index in range(20):
        verdict = Guard().incoming(message(after, planted(states[after], index)), previous, ClientContext(memory))
        assert verdict.action == "repair"
        assert verdict.model is not None
        assert all(torch.equal(verdict.model.tensors[name], tensor) for name, tensor in previous.tensors.items())
        assert f"add {after} to the guard's `accept`" in verdict.why
        assert verdict.memory is None, "an alarm teaches nothing"


def test_a_memory_of_another_version_or_model_is_forgotten_and_the_client_begins_anew() -> None:
    states = benign(6)
    memory, previous, _ = shown(Guard(), states[:5])
    for length in (0, len(memory["guard"]) - 3, len(memory["guard"]) + 1):
        other = {"guard": torch.zeros(length, dtype=torch.float64)}
        verdict = Guard().incoming(message(5, states[5]), previous, ClientContext(other))
        assert verdict.action == "accept"
        assert verdict.memory is not None
        assert len(verdict.memory["guard"]) == len(memory["guard"])


def test_a_refusing_guard_can_be_told_to_accept_and_goes_on_from_there() -> None:
    states = benign(6)
    memory, previous, _ = shown(Guard(), states[:5])
    jumped = {name: 3 * tensor for name, tensor in states[5].items()}  # a restart from elsewhere
    assert Guard(on_alarm="refuse").incoming(message(5, jumped), previous, ClientContext(memory)).action == "refuse"
    told = Guard(on_alarm="refuse", accept=(5,)).incoming(message(5, jumped), previous, ClientContext(memory))
    assert told.action == "accept"
    assert told.memory is not None
    after = {name: tensor + 0.01 * states[5][name] for name, tensor in jumped.items()}
    verdict = Guard(on_alarm="refuse").incoming(message(6, after), message(5, jumped), ClientContext(told.memory))
    assert verdict.action == "accept"


def test_a_learning_rate_drop_a_new_cohort_and_a_repeated_model_raise_no_alarm() -> None:
    first = federation(CLIENTS, model=deep(), training=TRAINING, rounds=6)
    states = []
    for number in range(6):
        states.append({name: tensor.clone() for name, tensor in state_of(first.model).items()})
        first.round(number)
    others = [blobs(60, seed) for seed in range(50, 54)]
    second = federation(others, model=first.model, training=replace(TRAINING, lr=0.01), rounds=6)
    for number in range(6):
        states.append({name: tensor.clone() for name, tensor in state_of(second.model).items()})
        second.round(number)
    states.insert(8, states[7])  # a server that was restarted sends its last model again
    assert shown(Guard(), states)[2] == ["accept"] * len(states)


def test_the_memory_is_small_and_survives_being_written_down() -> None:
    states = benign(6)
    memory, previous, _ = shown(Guard(), states[:5])
    assert sum(tensor.numel() for tensor in memory.values()) < 100
    again = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in memory.items()}
    for state, action in ((states[5], "accept"), (planted(states[5]), "repair")):
        assert Guard().incoming(message(5, state), previous, ClientContext(again)).action == action


def test_a_client_that_lost_its_last_model_begins_anew() -> None:
    memory, _, _ = shown(Guard(), benign(4))
    verdict = Guard().incoming(message(4, benign(1)[0]), None, ClientContext(memory))
    assert verdict.action == "accept"
    assert verdict.memory == {}


def test_activations_that_only_serve_an_attack_are_refused() -> None:
    bad, good = (ClientContext(architecture=lambda a=alpha: deep(activation="elu", alpha=a)) for alpha in (-2.0, 1.0))
    assert "alpha -2" in Guard().incoming(message(0, {}), None, bad).why
    assert Guard().incoming(message(0, {}), None, good).action == "accept"


@pytest.mark.parametrize("damage", ["nan", "renamed", "reshaped"])
def test_a_model_of_another_form_is_refused(damage: str) -> None:
    state = benign(1)[0]
    name = "fc1.weight"
    bad = dict(state)
    if damage == "nan":
        bad[name] = torch.full_like(state[name], torch.nan)
    elif damage == "renamed":
        bad["other"] = bad.pop(name)
    else:
        bad[name] = state[name].T
    assert Guard().incoming(message(1, bad), message(0, state), ClientContext()).action == "refuse"


def test_the_bound_holds_what_it_states_for_benign_values_of_its_own_model() -> None:
    """With a history of normal values the next one exceeds its bound about as often as stated: 1 % over all five."""
    rng = torch.Generator().manual_seed(0)
    middle, spread = torch.tensor(PRIOR_MIDDLE), torch.tensor(PRIOR_SPREAD)
    alarms = 0
    for _ in range(600):
        values = (middle + spread * torch.randn(13, len(middle), generator=rng)).tolist()
        history = History.empty()
        for one in values[:-1]:
            history = history.after(one)
        alarms += any(value > bound for value, bound in zip(values[-1], bounds(history, 0.01), strict=True))
    assert alarms <= 14  # binomial(600, 0.01) is above 14 with probability 0.0004
    strict, lax = bounds(History.empty(), 0.1), bounds(History.empty(), 0.001)
    assert strict[0] < lax[0]
    assert all(a <= b for a, b in zip(strict, lax, strict=True))


def test_no_history_makes_the_bounds_tighter_or_wider_than_stated() -> None:
    for value in (-50.0, 50.0):
        history = History.empty()
        for _ in range(100):
            history = history.after([value] * len(FLOOR))
        found = bounds(history, 0.01)
        assert all(low <= bound <= high for low, bound, high in zip(FLOOR, found, CEILING, strict=True))


def test_what_passes_without_a_look_at_the_bounds_is_below_all_of_them() -> None:
    rng = torch.Generator().manual_seed(6)
    passed = 0
    for _ in range(300):
        history = History.empty()
        for one in (3 * torch.randn(4, len(FLOOR), generator=rng)).tolist():
            history = history.after(one)
        values = (1.5 * torch.randn(len(FLOOR), generator=rng)).tolist()
        values[int(torch.randint(len(FLOOR), (), generator=rng))] = math.nan  # said nothing
        passed += ordinary(values)
        above = any(value > bound for value, bound in zip(values, bounds(history, 0.5), strict=True))
        assert not (ordinary(values) and above)
    assert 30 < passed < 270


def test_a_small_odd_step_in_a_quiet_round_is_no_alarm() -> None:
    """After a drop of the learning rate single neurons move unlike the others, by less than they used to."""
    rng = torch.Generator().manual_seed(5)
    before = {"a.weight": torch.randn(64, 20, generator=rng)}
    even = {name: tensor + 0.1 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    usual = read_change(before, even, None).layers
    quiet = {name: tensor + 0.001 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    quiet["a.weight"][3] += 0.05
    assert read_change(before, quiet, None).values[0] > 3
    assert read_change(before, quiet, usual).values[0] < 0.5
    quiet["a.weight"][3] += 5
    assert read_change(before, quiet, usual).values[0] > 3


def test_a_history_is_that_of_its_rounds_and_forgets_slowly() -> None:
    rng = torch.Generator().manual_seed(1)
    values = torch.randn(40, 5, generator=rng).double()
    values[3, 2] = torch.nan  # said nothing
    history = History.empty()
    for one in values.tolist():
        history = history.after(one)
    known = values[~values[:, 2].isnan(), 2]
    assert history.rounds == (40, 40, 39, 40, 40)
    assert history.mean[2] == pytest.approx(float(known.mean()))
    assert history.squares[2] == pytest.approx(float((known - known.mean()).square().sum()))
    for _ in range(300):
        history = history.after([9.0] * 5)
    assert history.rounds == (KEPT,) * 5
    assert history.mean == pytest.approx([9.0] * 5, abs=0.3)


@pytest.mark.parametrize("shape", [(), (7,), (40, 3), (300, 200), (12, 5, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_over_a_tensor_sees_what_plain_sums_see(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(2)
    before, now = (torch.randn(shape, generator=rng).to(dtype) for _ in range(2))
    found, squares = layer_change([before], [now]), (now - before).square()
    for seen, plain in ((found.steps, squares), (found.sizes, now.square())):
        by_unit = plain.reshape(max(len(shape) and shape[0], 1), -1).sum(1)
        assert torch.allclose(torch.from_numpy(seen), by_unit.sort().values)
    assert len(found.inputs) == (len(shape) > 1)
    for columns, entries in found.inputs:
        by_input = squares.transpose(0, 1).flatten(1).sum(1)
        assert torch.allclose(torch.from_numpy(columns), by_input.sort().values, rtol=1e-4)
        assert entries == now.numel()
    assert found.entries == now.numel()
    half = layer_change([before.half()], [now.half()])
    assert np.allclose(half.steps, found.steps, rtol=0.05, atol=0.01)


def test_the_tensors_of_a_layer_are_seen_together_where_they_agree_on_what_a_unit_is() -> None:
    rng = torch.Generator().manual_seed(7)
    weight, bias, odd = torch.randn(9, 4, generator=rng), torch.randn(9, generator=rng), torch.randn(5, generator=rng)
    nothing = [torch.zeros_like(tensor) for tensor in (weight, bias, odd)]
    both = layer_change(nothing[:2], [weight, bias])
    assert torch.allclose(torch.from_numpy(both.steps), (weight.square().sum(1) + bias.square()).sort().values)
    all_three = layer_change(nothing, [weight, bias, odd])
    total = sum(float(tensor.square().sum()) for tensor in (weight, bias, odd))
    assert all_three.steps.tolist() == pytest.approx([total])
    assert all_three.sizes.tolist() == pytest.approx([total])
    assert (both.entries, all_three.entries) == (45, 50)


def test_one_neuron_that_moved_oddly_stands_out_whatever_the_rest_does() -> None:
    rng = torch.Generator().manual_seed(3)
    before = {"a.weight": torch.randn(64, 20, generator=rng), "a.bias": torch.randn(64, generator=rng)}
    even = {name: tensor + 0.01 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    usual = read_change(before, even, None)
    for part in before:  # in the weights or in the bias alone
        odd = {name: tensor.clone() for name, tensor in even.items()}
        odd[part][5] += 3
        assert read_change(before, odd, None).values[0] > usual.values[0] + 1.5
    dead = {name: tensor.clone() for name, tensor in even.items()}
    for name in dead:
        dead[name][10:50] = before[name][10:50]  # most of the layer stands still
    assert abs(read_change(before, dead, None).values[0] - usual.values[0]) < 1


def test_a_neuron_that_stands_out_by_its_weights_is_seen_however_slowly_it_got_there() -> None:
    """No step is odd; what counts is where they lead, and no accepted model moves that mark."""
    rng = torch.Generator().manual_seed(8)
    state = {"a.weight": torch.randn(64, 20, generator=rng), "a.bias": torch.zeros(64)}
    memory: dict[str, Tensor] = {}
    previous, actions, marks = message(0, state), [], read_change(state, state, None).stand
    for number in range(1, 200):
        state = {name: tensor + 0.1 * torch.randn(tensor.shape, generator=rng) for name, tensor in state.items()}
        state["a.weight"][5] *= 1.05
        verdict = Guard(on_alarm="refuse").incoming(message(number, state), previous, ClientContext(memory))
        actions.append(verdict.action)
        if verdict.action == "refuse":
            break
        memory, previous = dict(verdict.memory or memory), message(number, state)
    assert actions[-1] == "refuse"
    assert 20 < len(actions) < 80
    assert "a neuron's weights" in verdict.why
    assert "a neuron's step" not in verdict.why
    assert recalled(memory["guard"])[1].first == pytest.approx(marks), "the first model's, whatever came after it"
    told = Guard(accept=(number,)).incoming(message(number, state), previous, ClientContext(memory))
    assert told.action == "accept"
    again = {name: tensor + 0.1 * torch.randn(tensor.shape, generator=rng) for name, tensor in state.items()}
    after = Guard().incoming(message(number + 1, again), message(number, state), ClientContext(dict(told.memory or {})))
    assert after.action == "accept", "what a person accepted is the new mark"


def test_a_server_that_claims_a_far_later_round_gains_little() -> None:
    states = benign(6)
    memory, previous, _ = shown(Guard(), states[:5])
    assert previous is not None
    for index in range(10):
        far = message(10**6, planted(states[5], index))
        assert Guard().incoming(far, previous, ClientContext(memory)).action == "repair"


def test_a_way_of_many_rounds_is_no_growth_of_one_rounds_step() -> None:
    """Fifty steps at once are an alarm in the next round, and nothing to a client that comes back after fifty."""
    rng = torch.Generator().manual_seed(6)
    before = {f"{name}.weight": torch.randn(64, 20, generator=rng) for name in "ab"}
    step = {name: 0.001 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    usual = read_change(before, {name: tensor + step[name] for name, tensor in before.items()}, None).layers
    far = {name: tensor + 50 * step[name] for name, tensor in before.items()}
    assert read_change(before, far, usual).values[2] > FLOOR[2]
    assert ordinary(read_change(before, far, usual, 50).values)


def test_averages_of_a_normalisation_layer_go_where_the_data_are_and_no_neuron_grows_by_that() -> None:
    rng = torch.Generator().manual_seed(9)
    before = {"a.weight": torch.randn(16, 9, generator=rng)}
    before |= {"n.weight": torch.ones(16), "n.running_mean": torch.zeros(16), "n.running_var": torch.ones(16)}
    now = {name: tensor + 0.01 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    moved = {**now, "n.running_mean": now["n.running_mean"] + 2, "n.running_var": 5 * now["n.running_var"]}
    grown = {**now, "n.weight": 50 * now["n.weight"]}
    assert read_change(before, moved, None, 5).values[3] < FLOOR[3]
    assert read_change(before, grown, None, 5).values[3] > FLOOR[3]


def test_a_layer_that_begins_with_zeros_may_grow_to_the_size_of_others() -> None:
    rng = torch.Generator().manual_seed(7)
    before = {f"{name}.weight": torch.randn(16, 9, generator=rng) for name in "abc"} | {"d.weight": torch.zeros(16, 9)}
    steps = {name: 0.1 * torch.randn(tensor.shape, generator=rng) for name, tensor in before.items()}
    grown = {name: tensor + steps[name] for name, tensor in before.items()}
    assert read_change(before, grown, None).values[3] < FLOOR[3]
    large = {**grown, "d.weight": 20 * grown["a.weight"]}
    assert read_change(before, large, None).values[3] > CEILING[3]


def test_a_server_cannot_talk_the_guard_into_ever_larger_steps() -> None:
    """Steps that all grow by half each round are stopped long before they are a hundred times what was usual."""
    state = benign(6)[-1]
    rng = torch.Generator().manual_seed(4)
    directions = {name: torch.randn(tensor.shape, generator=rng) for name, tensor in state.items()}
    memory, previous, _ = shown(Guard(), benign(6))
    usual, size = recalled(memory["guard"])[1].steps[0], 1.0
    number, accepted = 6, True
    while accepted and size < 1e4:
        step = float(torch.tensor(usual).exp()) * size
        number, size = number + 1, size * 1.5
        state = {name: tensor + step * directions[name] for name, tensor in state.items()}
        verdict = Guard().incoming(message(number, state), previous, ClientContext(memory))
        accepted = verdict.action == "accept"
        if accepted and verdict.memory is not None:
            memory, previous = dict(verdict.memory), message(number, state)
    assert size < 100


def test_guards_act_in_a_federation_and_a_rolled_back_round_tells_nothing_of_the_plant() -> None:
    made = federation(CLIENTS, model=deep(), training=TRAINING, rounds=5, defenses=(Guard(),))
    made.plant = lambda m: replace(m, tensors=planted(dict(m.tensors))) if m.round == 4 else m
    rounds = made.run()
    assert [len(done.events) for done in rounds] == [0, 0, 0, 0, 4]
    assert all("guard: repair" in event.what for event in rounds[-1].events)
    assert len(rounds[-1].clients) == 4


def test_wadm_equals_the_formula_and_misses_few_large_weights() -> None:
    """A row of m spikes in f weights has the divergence -ln(1 - m / f), whatever their size (docs/design/active.md)."""
    before = torch.rand(4, 128, generator=torch.Generator().manual_seed(0)) * 0.1
    for size in (5.0, 500.0):
        now = before.clone()
        now[3] = 0
        now[3, :9] = -size
        found = divergences(before, now, 5, "corrected")
        assert found[:3].tolist() == [0, 0, 0]
        assert found[3] == pytest.approx(-np.log(1 - 9 / 128))
        assert divergences(before, now, 5, "published")[3] == pytest.approx(found[3] * 128 / 4)
    wide = Wadm(units="corrected").incoming(message(1, _two(now)), message(0, _two(before)), ClientContext())
    assert wide.action == "accept"


def test_wadm_restores_a_neuron_that_changed_and_nothing_else() -> None:
    before = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    now = before + 0.001
    now[2] = torch.linspace(-9, 9, 128)
    verdict = Wadm().incoming(message(1, _two(now)), message(0, _two(before)), ClientContext())
    assert verdict.action == "repair"
    assert verdict.model is not None
    mended = verdict.model.tensors["b.weight"]
    assert torch.equal(mended[2], before[2])
    assert torch.equal(mended[:2], now[:2])


def _two(second: Tensor) -> Tensors:
    return {"a.weight": torch.ones(2, 2), "b.weight": second, "b.bias": torch.zeros(len(second))}


def test_badacc_and_badauc_leave_when_the_model_gets_worse_and_stay_away() -> None:
    own = blobs(200, 5)
    own = Examples(own.x, (own.y > 2).long())
    model = network(widths=[16], classes=2)
    good = {name: tensor.clone() for name, tensor in state_of(model).items()}
    for seed in range(30):
        change = train(model, good, own, LocalTraining(lr=0.2), generator(seed, "good"))
        good = {name: tensor + change[name] for name, tensor in good.items()}
    bad = {name: -tensor for name, tensor in good.items()}
    for guard in (BadAcc(), BadAuc()):
        memory: dict[str, Tensor] = {}
        actions = []
        for number, state in enumerate((good, good, bad, good)):
            site = ClientContext(memory, lambda: network(widths=[16], classes=2), own)
            verdict = guard.incoming(message(number, state), None, site)
            memory = dict(verdict.memory) if verdict.memory is not None else memory
            actions.append(verdict.action)
        assert actions == ["accept", "accept", "refuse", "refuse"]
        with pytest.raises(UsageError, match="architecture"):
            guard.incoming(message(0, good), None, ClientContext())


def _share_of_pairs(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The ROC area the other way: how many pairs of a hit and a miss are in the right order; equal ones count half."""
    ahead = scores[positive][:, None] - scores[~positive]
    return float(((ahead > 0).double() + 0.5 * (ahead == 0)).mean())


def test_the_roc_area_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, y = torch.randn(80, 1, generator=rng).round(decimals=1), torch.randint(2, (80,), generator=rng)
    assert roc_area(logits, y) == pytest.approx(_share_of_pairs(logits.flatten(), y == 1), abs=1e-12)
    many, labels = torch.randn(80, 4, generator=rng).round(decimals=1), torch.randint(3, (80,), generator=rng)
    each = [_share_of_pairs(many[:, c], labels == c) for c in range(3)]  # nobody has the fourth class
    assert roc_area(many, labels) == pytest.approx(sum(each) / 3, abs=1e-12)


def test_one_class_has_no_roc_area_and_a_broken_model_has_one() -> None:
    y = torch.arange(80) % 2
    assert roc_area(torch.randn(80, 1), torch.zeros(80, dtype=torch.int64)) is None
    assert roc_area(torch.full((80, 1), torch.nan), y) == 0.5
    assert roc_area(torch.where(y == 1, torch.inf, -torch.inf)[:, None], y) == 1.0


def test_contributors_count_samples() -> None:
    even, alone = torch.ones(10, 1), torch.zeros(10, 1)
    alone[3] = -2.5
    assert contributors(torch.cat([even, alone], 1)).tolist() == pytest.approx([10, 1])


def test_the_gate_stops_a_planted_neuron_and_leaves_honest_training_alone() -> None:
    own = CLIENTS[0]
    state = benign(3)[2]
    dense = read_dense_network(deep())
    gated = GradientGate().local(replace(TRAINING, batch_size=60, epochs=1))
    for index in range(10):
        bad = planted(state, index)
        plain, behind = (
            train(deep(), bad, own, training, generator(index, "gate"))
            for training in (replace(TRAINING, batch_size=60, epochs=1), gated)
        )
        assert float(plain[dense.bias(1)][-1]) != 0, "unguarded, the neuron moves"
        assert float(behind[dense.bias(1)][-1]) == 0
        assert not bool(behind[dense.weight(1)][-1].any())
        assert not bool(behind[dense.weight(2)][:, -1].any())
    assert gradient(deep(), own).keys() == gated.gradient_of(deep(), own, generator(0, "gate")).keys()


def test_a_gated_federation_learns_as_well() -> None:
    def loss(**options: Any) -> float:
        made = federation(CLIENTS, model=deep(), training=TRAINING, rounds=8, **options)
        made.run()
        test = blobs(200, 99)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(made.model(test.x), test.y))

    assert loss(defenses=(GradientGate(fewest=2.0),)) < loss() + 0.1
