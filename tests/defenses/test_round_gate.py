"""The gate looks at a round as a whole: what it holds back rests on few samples, and all else is as it was trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from operator import and_
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.model_checks.few_contributors import rest_on_few
from fedspill.defenses.model_checks.isolating_units import contributors, fewest_in_pairs
from fedspill.defenses.model_checks.made_of_others import made_of_others
from fedspill.errors import UsageError
from fedspill.federation.local import state_of, train
from fedspill.federation.round_looks import SampleSignals
from fedspill.planting.bins import BinDesign, plant_bins
from fedspill.planting.reading_place import ReadingPlace
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors

DIGITS = make("datasets", "digits").load(None)
LOCAL = LocalTraining(lr=0.05, batch_size=8, epochs=3)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


def bins_in(model: nn.Module, samples: int) -> Tensors:
    place = ReadingPlace.of(model, DIGITS.test.x)
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    rng = torch.Generator().manual_seed(samples)
    return plant_bins(place.layer, state, place.inputs(), BinDesign(norms="usual"), rng, [place.packing()])


def moved_rows(change: Tensors) -> Tensor:
    return change["1.weight"].abs().sum(1) > 0


def signals_like(kind: str, samples: int, units: int, rng: torch.Generator) -> Tensor:
    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    if kind == "sparse":
        return noise(samples, units) * (torch.rand(samples, units, generator=rng) < torch.rand(units, generator=rng))
    heights, sent = noise(samples, 1), noise(samples, 9) @ noise(9, 1)
    nested = (heights > torch.linspace(-2, 2, units)) * sent
    if kind == "bins":
        return nested
    return torch.where(torch.rand(units, generator=rng) < 0.5, nested, noise(samples, 9) @ noise(9, units))


def again(fires: Tensor) -> Callable[[int], Tensor]:
    """Other inputs, for which units fire as for these samples."""
    return lambda many: fires.to(torch.float32)[torch.arange(many) % len(fires)]


def test_units_that_all_samples_or_none_reach_are_not_compared() -> None:
    rng = torch.Generator().manual_seed(1)
    signals = torch.rand(40, 6, generator=rng) + 0.5
    signals[:, :2] *= (torch.arange(40) % 2)[:, None]
    signals[:2, 1] = torch.tensor([1.0, 0.0])  # two samples tell 1 from 0
    signals[:, 2:4] *= torch.rand(40, 2, generator=rng) < 0.5
    between = rest_on_few(signals, 3.0, pairs=True, firing=again(signals != 0))
    fire_alike = between & ~rest_on_few(signals, 3.0, pairs=True)
    assert fire_alike.tolist() == [True, True, False, False, False, False]


def test_units_that_leave_few_samples_out_rest_on_these_whatever_stands_behind_them() -> None:
    rng = torch.Generator().manual_seed(2)
    sent = torch.randn(60, 9, generator=rng) @ torch.randn(9, 8, generator=rng)
    heights = torch.randn(60, generator=rng).argsort().argsort()
    fires = torch.ones(60, 8, dtype=torch.bool)  # the first two and the last reach all samples
    fires[:, 2] = heights > 0
    fires[:, 3] = heights > 20
    fires[:, 4] = heights < 20
    fires[:, 5] = heights > 40
    fires[:, 6] = heights < 34
    few = rest_on_few(sent * fires, 5.0, pairs=True, firing=again(fires))
    assert few.tolist() == [False, False, True, True, True, False, False, False]


def test_units_that_others_make_up_rest_on_the_samples_that_these_leave() -> None:
    rng = torch.Generator().manual_seed(3)
    a, b, c, d = (torch.rand(300, 4, generator=rng) < 0.5).T
    heights = torch.randn(300, generator=rng)
    over, under = a & (heights > 0.02), a & (heights < 0)  # who of a is in neither: two or three of a hundred
    either, both = c | d, c & d
    fires = torch.stack([a, over, under, b, b & (heights > 1), c, d, either, both & (heights < 1.7)], 1).float()
    left = [bool(one) for one in made_of_others(fires[:100], fires[100:], 5.0)]
    assert left == [True, True, True, False, False, True, True, True, True]
    assert not made_of_others(fires[:100, [0, 1, 3, 4, 5, 6, 7]], fires[100:, [0, 1, 3, 4, 5, 6, 7]], 5.0).any()


def test_the_short_way_fits_what_others_make_up_as_least_squares_does() -> None:
    rng = torch.Generator().manual_seed(4)
    fires = (torch.randn(500, 12, generator=rng) @ torch.randn(12, 40, generator=rng) > 0.8).double()
    centred = fires - fires.mean(0)
    counts = []
    for unit in range(40):
        others = centred[:, torch.arange(40) != unit]
        left = centred[:, unit] - others @ torch.linalg.lstsq(others, centred[:, unit, None]).solution[:, 0]
        counts.append(float(left[:60].square().sum().square() / left[:60].pow(4).sum()))
    stopped = torch.tensor(counts)
    for needed in sorted(counts)[5:30:6]:
        found = made_of_others(fires[:60].float(), fires[60:].float(), needed + 0.05)
        clear = (stopped - needed - 0.05).abs() > 0.1
        assert torch.equal(found[clear], (stopped < needed + 0.05)[clear])


def test_other_inputs_begin_as_one_sample_and_end_as_another() -> None:
    x = (torch.rand(5, 20, generator=torch.Generator().manual_seed(5)) < 0.5).float()
    layer = nn.Linear(20, 20)
    with torch.no_grad():  # a unit for each column
        layer.weight.copy_(torch.eye(20))
        layer.bias.fill_(-0.5)
    seen = SampleSignals({"layer": layer})
    layer(x)
    made = seen.crossed("layer")(200)
    seen.close()
    for one in made:
        begun = [any(torch.equal(one[:cut], row[:cut]) for row in x) for cut in range(21)]
        ended = [any(torch.equal(one[cut:], row[cut:]) for row in x) for cut in range(21)]
        assert any(map(and_, begun, ended))
    assert len(made.unique(dim=0)) > 20


@pytest.mark.parametrize("kind", ["sparse", "bins", "mixed"])
@pytest.mark.parametrize(("samples", "units"), [(20, 16), (48, 128), (600, 64)])
def test_the_short_way_stops_the_units_that_the_long_one_counts(kind: str, samples: int, units: int) -> None:
    signals = signals_like(kind, samples, units, torch.Generator().manual_seed(units))
    even = signals / signals.norm(dim=1, keepdim=True).clamp_min(1e-30)
    alone = contributors(signals)
    # Bars that no count meets exactly, since float32 and float64 may say either there.
    for fewest in (2.51, 4.73):
        needed = min(fewest, samples / 4)
        stopped = alone < needed
        beside = torch.full_like(alone, torch.inf)
        beside[~stopped] = fewest_in_pairs(even[:, ~stopped])
        counts = torch.stack([alone, beside])
        assert not bool(((counts - needed).abs() < 1e-3).any())
        for few, options in ((alone, {}), (counts.amin(0), {"pairs": True})):
            assert torch.equal(rest_on_few(signals, fewest, **options), few < needed)


def test_a_round_of_several_local_steps_holds_nothing_of_bins() -> None:
    own, model = DIGITS.train.take(torch.arange(32)), net()
    planted, honest = bins_in(model, 32), {name: tensor.clone() for name, tensor in state_of(model).items()}
    gate = GradientGate(pairs=True)
    plain = train(model, planted, own, LOCAL, generator(0, "gate"))
    gated = train(model, planted, own, gate.local(LOCAL), generator(0, "gate"))
    assert float(moved_rows(plain).double().mean()) > 0.5
    assert float(moved_rows(gated).double().mean()) < 0.05
    more = DIGITS.train.take(torch.arange(300))
    assert float(moved_rows(train(model, honest, more, gate.local(LOCAL), generator(0, "gate"))).double().mean()) > 0.6


def test_what_is_not_held_back_is_trained_as_without_the_gate() -> None:
    own, model = DIGITS.train.take(torch.arange(200)), net()
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    plain = train(model, start, own, LOCAL, generator(0, "gate"))
    gated = train(model, start, own, GradientGate(pairs=True, part=1.0).local(LOCAL), generator(0, "gate"))
    rows = moved_rows(gated)
    assert 0.5 < float(rows.double().mean()) < 1
    assert torch.equal(gated["1.weight"][rows], plain["1.weight"][rows])
    assert torch.equal(gated["3.weight"][:, rows], plain["3.weight"][:, rows])
    assert not bool(gated["3.weight"][:, ~rows].any())
    assert torch.equal(gated["3.bias"], plain["3.bias"])


def test_a_sample_that_comes_in_every_epoch_is_one_sample() -> None:
    model, own = net(), DIGITS.train.take(torch.arange(40))
    with torch.no_grad():  # row 7 fires for sample 3 alone
        x = own.x.flatten(1)
        direction = x[3] - x.mean(0)
        model[1].weight[7] = direction
        model[1].bias[7] = -float((x @ direction).topk(2).values.mean())
    assert (x @ direction).argmax() == 3
    change = train(model, dict(state_of(model)), own, GradientGate().local(replace(LOCAL, epochs=8)), generator(0, "g"))
    assert not bool(moved_rows(change)[7])


def test_signals_of_a_round_are_those_that_its_change_is_made_of() -> None:
    model, own = net(), DIGITS.train.take(torch.arange(50))
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    seen, batches = SampleSignals({"1": model[1]}), LOCAL.batches(50, generator(0, "gate"))
    change = train(model, start, own, LOCAL, generator(0, "gate"))
    signals = seen.of(batches)["1"]
    seen.close()
    assert signals is not None
    assert signals.shape == (50, 96)
    assert torch.allclose(-LOCAL.lr * signals.T @ own.x.flatten(1), change["1.weight"], atol=1e-6)


def test_filters_in_front_learn_nothing_from_traps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 32), nn.ReLU(), nn.Linear(32, 10))
    own = DIGITS.train.take(torch.arange(40))
    own = Examples(own.x.reshape(40, 1, 8, 8), own.y)
    with torch.no_grad():
        heights = model[2](model[1](model[0](own.x))) - model[2].bias
        model[2].bias.copy_(-heights.topk(2, dim=0).values.mean(0))  # each row fires for one sample
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    plain = train(model, start, own, replace(LOCAL, batch_size=40), generator(0, "gate"))
    gated = train(model, start, own, GradientGate().local(replace(LOCAL, batch_size=40)), generator(0, "gate"))
    assert bool(plain["0.weight"].any())
    assert not bool(gated["0.weight"].any())
    assert not bool(gated["2.weight"].any())


class HeadFirst(nn.Module):
    """Lists its layers in another order than samples pass them."""

    def __init__(self, other: nn.Sequential) -> None:
        super().__init__()
        self.head, self.hidden = other[3], other[1]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
        return logits


def test_layers_are_gated_in_the_order_in_which_samples_pass_them() -> None:
    own, model = DIGITS.train.take(torch.arange(60)), net()
    planted, gate = bins_in(model, 48), GradientGate(pairs=True)
    listed = HeadFirst(net())
    names = {"head": "3", "hidden": "1"}
    same = {f"{ours}.{part}": planted[f"{name}.{part}"] for ours, name in names.items() for part in ("weight", "bias")}
    plain = train(model, planted, own, gate.local(LOCAL), generator(0, "gate"))
    gated = train(listed, same, own, gate.local(LOCAL), generator(0, "gate"))
    assert torch.equal(gated["hidden.weight"], plain["1.weight"])
    assert torch.equal(gated["head.weight"], plain["3.weight"])


def test_filters_learn_in_steps_of_fewer_samples_than_a_round_must_have() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 32), nn.ReLU(), nn.Linear(32, 10))
    own = DIGITS.train.take(torch.arange(100))
    own = Examples(own.x.reshape(100, 1, 8, 8), own.y)
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    gated = train(
        model, start, own, GradientGate(pairs=True).local(replace(LOCAL, batch_size=16)), generator(0, "gate")
    )
    assert bool(gated["0.weight"].any())


def test_layers_whose_weights_are_normalised_are_gated_behind_filters() -> None:
    """Such a weight is none of the layer's parameters, the first of which is the bias."""
    hidden = nn.utils.parametrizations.weight_norm(nn.Linear(4 * 36, 32))
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, 10))
    own = Examples(torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    training = GradientGate(pairs=True).local(LocalTraining(lr=0.1, batch_size=10))
    sent = train(model, state_of(model), own, training, generator(0, "weight norm"))
    assert all(bool(tensor.isfinite().all()) for tensor in sent.values())


def test_the_gate_stands_beside_what_acts_in_steps() -> None:
    own, model = DIGITS.train.take(torch.arange(200)), net()
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    smooth = LabelSmoothing().local(LOCAL)
    alone = train(model, start, own, smooth, generator(0, "gate"))
    both = train(model, start, own, GradientGate(pairs=True, part=1.0).local(smooth), generator(0, "gate"))
    rows = moved_rows(both)
    assert 0.5 < float(rows.double().mean()) < 1
    assert torch.allclose(both["1.weight"][rows], alone["1.weight"][rows], atol=1e-7)


@pytest.mark.parametrize(("samples", "sends"), [(4, False), (38, False), (80, True)])
def test_a_round_of_fewer_samples_than_pairs_can_be_told_by_sends_nothing_of_hidden_neurons(
    samples: int, sends: bool
) -> None:
    own, model = DIGITS.train.take(torch.arange(samples)), net()
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    gated = train(model, start, own, GradientGate(pairs=True).local(LOCAL), generator(0, "gate"))
    assert bool(gated["1.weight"].any()) == sends
    assert bool(gated["3.weight"].any()) == sends
    assert bool(gated["3.bias"].any())


def test_rows_that_make_up_a_category_but_for_a_gap_are_held_back() -> None:
    rng = torch.Generator().manual_seed(6)
    x, y = torch.rand(60, 8, generator=rng), torch.randint(2, (60,), generator=rng)
    x[:, 7] = (torch.arange(60) % 2).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    direction = torch.cat([torch.randn(7, generator=rng), torch.zeros(1)])
    heights = (x @ direction)[x[:, 7] == 1].sort().values
    above, below = heights[15:17].mean(), heights[14:16].mean()  # one sample lies between
    with torch.no_grad():
        for row, (sign, height) in enumerate([(0, -1.0), (1, above), (-1, -below)]):
            model[0].weight[row] = sign * direction
            model[0].weight[row, 7] = 50.0
            model[0].bias[row] = -height - 50
        model[2].weight[:, :3] = model[2].weight[:, :1].clone()
    own, step = Examples(x, y), LocalTraining(algorithm="fedsgd", batch_size=60)
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}

    def between(gate: GradientGate) -> Tensor:
        moved = train(model, start, own, gate.local(step), generator(0, "gate"))
        weight, bias = moved["0.weight"], moved["0.bias"]
        return (weight[0] - weight[1] - weight[2]) / (bias[0] - bias[1] - bias[2])

    isolated = x[(x[:, 7] == 1) & ((x @ direction) == heights[15])][0]
    assert torch.allclose(between(GradientGate(pairs=True, part=1.0, firing=False)), isolated, atol=1e-3)
    gated = train(model, start, own, GradientGate(pairs=True, part=1.0).local(step), generator(0, "gate"))
    assert not bool(gated["0.weight"][:3].any())


def read_from_two_rounds(gate: GradientGate, own: Examples) -> float:
    """The share of samples read from what changes when a model comes again with its first biases a little higher."""
    model, found = net(), []
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    training = gate.local(LocalTraining(algorithm="fedsgd", batch_size=len(own)))
    sent = []
    for number in range(20):
        asked = {**state, "1.bias": state["1.bias"] + 0.02 * (number - 10)}
        moved = train(model, asked, own, training, generator(number, "gate"))
        sent.append((moved["1.weight"].double(), moved["1.bias"].double()))
    for (weight, bias), (later, after) in pairwise(sent):
        rows = (bias != 0) & (after != 0) & ((bias - after).abs() > 1e-9)
        found.append((weight - later)[rows] / (bias - after)[rows, None])
    nearest = torch.cdist(torch.cat(found), own.x.flatten(1).double()).amin(0)
    return float((nearest < 0.0316 * 64**0.5).double().mean())


def test_what_two_rounds_tell_from_each_other_is_gone_where_each_has_samples_of_its_own() -> None:
    own = DIGITS.train.take(torch.arange(48))
    assert read_from_two_rounds(GradientGate(pairs=True, part=1.0), own) > 0.5
    assert read_from_two_rounds(GradientGate(pairs=True), own) == 0


@pytest.mark.parametrize("samples", [100, 13, 5])
def test_a_round_takes_its_usual_steps_on_a_part_of_the_samples_drawn_for_it(samples: int) -> None:
    training = GradientGate(pairs=True).local(LOCAL)
    rounds = [training.batches(samples, generator(number, "part")) for number in (0, 1)]
    drawn = [set(torch.cat(batches).tolist()) for batches in rounds]
    assert [len(part) for part in drawn] == [-(-samples // 2)] * 2
    assert [len(batches) for batches in rounds] == [LOCAL.schedule(samples).steps] * 2
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_steps_that_an_epsilon_is_reckoned_for_draw_from_all_samples(sampling: Literal["poisson", "shuffle"]) -> None:
    private = DpSgd(noise_multiplier=1.0, sampling=sampling)
    alone, gated = private.local(LOCAL), GradientGate(pairs=True).local(private.local(LOCAL))
    batches = [training.batches(100, generator(0, "part")) for training in (alone, gated)]
    assert all(map(torch.equal, *batches))


def test_the_row_of_a_class_that_is_predicted_for_one_sample_is_not_sent() -> None:
    own, model = DIGITS.train.take((DIGITS.train.y < 3).nonzero().flatten()[:48]), net()
    with torch.no_grad():  # class 9, which no sample has, is said of sample 7; all others are said to be 0
        h = torch.relu(model[1](own.x.flatten(1)))
        direction = h[7] - h.mean(0)
        heights = h @ direction
        model[3].weight.mul_(1000 * (torch.arange(10) > 0)[:, None])
        model[3].bias.copy_(-1e6 * (torch.arange(10) > 0))
        model[3].weight[9] = 1000 * direction
        model[3].bias[9] = -1000 * heights.topk(2).values.mean()
    assert heights.argmax() == 7
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    step = LocalTraining(algorithm="fedsgd", batch_size=48)
    plain = train(model, start, own, step, generator(0, "gate"))["3.weight"]
    gated = train(model, start, own, GradientGate(pairs=True, part=1.0).local(step), generator(0, "gate"))["3.weight"]
    assert torch.allclose(plain[9] * 48, h[7], atol=1e-4)
    assert not bool(gated[9].any())
    assert bool(gated[0].any())


def test_a_part_is_a_share() -> None:
    for part in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="part is a share"):
            GradientGate(part=part)
