"""Guards against patience: plants that read whole batches are seen by what they are, however slowly they came."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from spine import network
from torch import Tensor, nn

from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.defense import ClientContext, Verdict
from fedspill.defenses import guard as guard_module
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.guard import Guard
from fedspill.defenses.model_checks.isolating_units import (
    LayerLook,
    contributors,
    fewest_in_pairs,
    look_at,
)
from fedspill.defenses.model_checks.peelable_batches import SIZES, readable_shares
from fedspill.defenses.model_checks.rehearsal import Rehearsed, rehearsed
from fedspill.defenses.model_checks.row_likeness import RowLook, look_at_rows, sketch_rows
from fedspill.defenses.model_checks.suspected_plant import (
    fresh_looks,
    looks_of,
    plant_words,
    readable_by,
    redrawn_readable,
)
from fedspill.federation.local import train
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.planting.arrival import on_the_way
from fedspill.planting.bins import BinDesign, plant_bins, silence
from fedspill.planting.class_fishing import head_of, plant_class
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.peel import peel
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.robbing_rows import plant_brightness
from fedspill.planting.trap_rows import plant_traps
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors, gradient

DIGITS = Digits().load()
OWN = DIGITS.train.take(torch.arange(0, 1200, 8))
TRAINING = LocalTraining(lr=0.1, batch_size=25)


def net(seed: int = 0) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *list(network(seed, classes=10, features=64, widths=[96]))[1:])


@cache
def honest(rounds: int) -> Tensors:
    """A model after some rounds of honest training."""
    model = net()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number in range(rounds):
        others = DIGITS.train.take(torch.arange(number % 7, 1400, 7))
        change = train(model, state, others, TRAINING, generator(1, number))
        state = {name: tensor + change[name] for name, tensor in state.items()}
    return state


def bins(state: Tensors, place: ReadingPlace) -> Tensors:
    rng = torch.Generator().manual_seed(0)
    return plant_bins(place.layer, state, place.inputs(), BinDesign(norms="usual"), rng, [place.packing()])


def silent(state: Tensors, place: ReadingPlace) -> Tensors:
    made = {name: tensor.clone() for name, tensor in state.items()}
    silence(made, place.layer)
    return made


def traps(state: Tensors, place: ReadingPlace) -> Tensors:
    rng = torch.Generator().manual_seed(0)
    return plant_traps(place.layer, state, place.features(), 32, "biases", rng)


def brightness(state: Tensors, place: ReadingPlace) -> Tensors:
    return plant_brightness(place.layer, state, place.inputs(), [place.packing()])


def fishing(state: Tensors, place: ReadingPlace) -> Tensors:
    return plant_class(head_of(place.model), state, 3)


PLANTS: dict[str, tuple[Callable[[Tensors, ReadingPlace], Tensors], str]] = {
    "bins": (bins, "bins, by which"),
    "brightness": (brightness, "bins, by which"),
    "traps": (traps, "traps, by"),
    "fishing": (fishing, "silences all but some"),
    "silent": (silent, "silences all but some"),
}
every_plant = pytest.mark.parametrize("name", PLANTS)


def asked(guard: Guard, state: Tensors, previous: Tensors | None, memory: dict[str, Tensor], number: int) -> Verdict:
    client = ClientContext(memory, net, OWN)
    before = None if previous is None else Message(number - 1, SERVER, EVERYONE, "model", previous)
    return guard.incoming(Message(number, SERVER, EVERYONE, "model", state), before, client)


@every_plant
def test_a_first_model_is_examined_and_the_kind_of_plant_is_named(name: str) -> None:
    plant, words = PLANTS[name]
    place = ReadingPlace.of(net(), DIGITS.test.x)
    for rounds in (0, 10):
        assert asked(Guard(), honest(rounds), None, {}, 0).action == "accept"
        verdict = asked(Guard(), plant(honest(rounds), place), None, {}, 0)
        assert verdict.action == "refuse"
        assert words in verdict.why
    assert asked(Guard(accept=(0,)), plant(honest(10), place), None, {}, 0).action == "accept"


@every_plant
@pytest.mark.parametrize("rounds", [3, 20])
def test_a_plant_that_arrives_slowly_is_stopped_before_it_can_be_read(name: str, rounds: int) -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    start = honest(4)
    goal = PLANTS[name][0](start, place)
    memory = dict(asked(Guard(), honest(3), None, {}, 3).memory or {})
    previous, stopped = honest(3), 0
    for step in range(1, rounds + 1):
        state = on_the_way(start, goal, step / rounds, place.layer)
        verdict = asked(Guard(), state, previous, memory, 3 + step)
        if verdict.action != "accept":
            stopped = step
            break
        memory, previous = dict(verdict.memory or memory), state
    assert 0 < stopped <= rounds
    if name == "brightness":  # one number for all rows: it can be read when nine tenths of the way are gone
        return
    assert read_share(place, previous, GradientGate(pairs=True)) == 0, "nothing where the gate stands behind"


def read_share(place: ReadingPlace, state: Tensors, gate: GradientGate | None = None) -> float:
    """The share of a batch of 40 that a server reads out of its gradient, or of what a gate leaves of it."""
    batch = OWN.take(torch.arange(40))
    place.model.load_state_dict(state)
    sent = gradient(place.model, batch)
    if gate is not None:
        training = LocalTraining(algorithm="fedsgd", batch_size=40)
        sent = gate.local(training).gradient_of(place.model, batch, generator(0, "gate"))
    seen = sent[place.layer.weight].double(), sent[place.layer.bias].double()
    found = peel(PlantedNetwork.of(place.model, state), place.packing(), *seen, 40)
    return len(found.samples) / 40


def test_claimed_rounds_excuse_no_plant() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    memory = dict(asked(Guard(), honest(3), None, {}, 3).memory or {})
    for number in (5, 5 + 32, 5 + 10**6):
        assert asked(Guard(), bins(honest(5), place), honest(3), memory, number).action == "repair"


def test_where_models_are_not_examined_claimed_rounds_excuse_nothing() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    memory = dict(asked(Guard(examine=False), honest(3), None, {}, 3).memory or {})
    verdict = asked(Guard(examine=False), honest(4), honest(3), memory, 4)
    memory = dict(verdict.memory or {})
    for number in (5, 5 + 32, 5 + 10**6):
        verdict = asked(Guard(examine=False), bins(honest(5), place), honest(4), memory, number)
        assert verdict.action == "repair"


def test_rows_that_were_replaced_slowly_are_seen_without_any_data() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    first = sketch_rows(honest(0))

    def looked(state: Tensors) -> RowLook:
        return look_at_rows(sketch_rows(state), first, state)

    assert looked(honest(10)).left > 0.3
    rng = torch.Generator().manual_seed(0)
    replaced = plant_traps(place.layer, honest(10), place.features(), 32, "calibrated", rng)
    assert looked(replaced).left < 0.15
    assert looked(honest(10)).alike == 0
    assert looked(bins(honest(10), place)).alike > 0.9


def test_benign_models_single_nobody_out_at_any_stage_of_training() -> None:
    for rounds in (0, 1, 4, 10):
        model = net()
        model.load_state_dict(honest(rounds))
        for look in look_at(model, OWN):
            assert look.alone < 0.25
            assert look.pairs < 0.1
            assert look.silenced < 0.5


def test_the_fewest_contributors_of_pairs_are_those_of_the_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    signals = torch.randn(64, 12, generator=rng)
    signals[:, 3] = 2 * signals[:, 2]
    signals[7, 3] += 1.5  # one sample tells 3 from 2
    signals[:, 5] = 0
    found = fewest_in_pairs(signals)
    assert float(found[2]) < 1.5
    assert float(found[3]) < 1.5
    assert torch.isinf(found[5])
    for unit in (0, 1, 4):  # by the slow way: the fourth-power count of every difference
        s = signals.double() / signals.double().norm(dim=0).clamp_min(1e-300)
        rest = [s[:, unit] - (s[:, unit] @ s[:, j]) * s[:, j] for j in range(12) if j not in (unit, 5)]
        slow = min(float(r.square().sum() ** 2 / r.pow(4).sum()) for r in rest)
        assert float(found[unit]) == pytest.approx(slow, rel=1e-6)
    assert float(contributors(signals)[0]) > 30


def test_the_gate_over_pairs_stops_what_the_plain_gate_lets_through() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    planted = bins(honest(4), place)
    batch = Examples(OWN.x[:64], OWN.y[:64])
    model = net()
    model.load_state_dict(planted)
    moved = {}
    for pairs in (False, True):
        training = GradientGate(pairs=pairs).local(LocalTraining(algorithm="fedsgd", batch_size=64))
        gradient = training.gradient_of(model, batch, generator(0, "gate"))
        moved[pairs] = float((gradient[place.layer.weight].abs().sum(1) > 0).double().mean())
    assert moved[False] > 0.5
    assert moved[True] < 0.05
    model.load_state_dict(honest(4))
    gated = GradientGate(pairs=True).local(LocalTraining(algorithm="fedsgd", batch_size=64))
    gradient = gated.gradient_of(model, batch, generator(0, "gate"))
    assert float((gradient[place.layer.weight].abs().sum(1) > 0).double().mean()) > 0.4


def test_rows_that_cancel_only_by_tens_get_past_pairs_and_not_past_whom_they_fire_for() -> None:
    """Columns behind the bins are random: no two rows get the same from a sample, and ten of them together do."""
    model = nn.Sequential(nn.Flatten(), *list(network(0, classes=10, features=64, widths=[384]))[1:])
    place, rng = ReadingPlace.of(model, DIGITS.test.x), torch.Generator().manual_seed(0)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    design = BinDesign(functionals=1, norms="usual")
    planted = plant_bins(place.layer, state, place.inputs(), design, rng, [place.packing()])
    second = planted[place.layer.second_weight]
    planted[place.layer.second_weight] = torch.randn(second.shape, generator=rng) * second.std()
    batch, open_ = Examples(OWN.x[:48], OWN.y[:48]), {}
    for name, handed in (("planted", planted), ("honest", state)):
        for firing in (False, True):
            model.load_state_dict(handed)
            training = GradientGate(pairs=True, firing=firing).local(LocalTraining(algorithm="fedsgd", batch_size=48))
            gradient = training.gradient_of(model, batch, generator(0, "gate"))
            open_[name, firing] = float((gradient[place.layer.weight].abs().sum(1) > 0).double().mean())
    assert open_["planted", False] > 0.15
    assert open_["planted", True] < 0.1, "rows that nearly all samples reach are not compared"
    assert open_["honest", True] > 0.45


def test_large_batches_that_give_more_away_than_shortly_before_are_seen_sooner() -> None:
    first, lately = torch.zeros(1, 6), torch.tensor([[1.0, 0.5, 0.3, 0.1, 0.1, 0.1]])
    look = LayerLook("fc1", 96, 0.1, 0.05, 0.0, (1.0, 0.2, 0.0, 0.32, 0.32, 0.32))
    usual = Rehearsed(*torch.zeros(4, 1), torch.ones(1, 6))
    assert plant_words([look], first, rehearsed=lambda: usual) == ""
    assert "32 % of batches of 32 and more" in plant_words([look], first, rehearsed=lambda: usual, lately=lately)
    assert plant_words([look], first, rehearsed=lambda: usual, lately=lately + 0.1) == ""
    assert plant_words([replace(look, first=False)], first, rehearsed=lambda: usual, lately=lately) == ""


def test_traps_in_a_third_of_the_rows_are_seen_when_they_come_at_once() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    rng = torch.Generator().manual_seed(0)
    whole = plant_traps(place.layer, honest(4), place.features(), 40, "calibrated", rng)
    chosen = torch.arange(96) % 3 == 0
    part = {
        **honest(4),
        place.layer.weight: torch.where(chosen[:, None], whole[place.layer.weight], honest(4)[place.layer.weight]),
        place.layer.bias: torch.where(chosen, whole[place.layer.bias], honest(4)[place.layer.bias]),
    }
    memory = dict(asked(Guard(), honest(3), None, {}, 3).memory or {})
    verdict = asked(Guard(), part, honest(3), memory, 4)
    assert verdict.action == "repair"
    assert "on its way" in verdict.why
    assert asked(Guard(), honest(4), honest(3), memory, 4).action == "accept"


def test_a_rehearsal_excuses_what_small_batches_give_away_and_not_what_large_ones_do() -> None:
    first = torch.tensor([[1.0, 0.5, 0.2, 0.1, 0.0, 0.0]])
    nothing, everything = torch.zeros(1), torch.ones(1, 6)
    known_by_heart = Rehearsed(nothing, nothing, nothing, nothing + 1, everything)
    small, large = (1.0, 1.0, 1.0, 0.3, 0.1, 0.0), (1.0, 0.9, 0.6, 0.6, 0.5, 0.4)
    for now, alone, excused in (
        (tuple(first[0].tolist()), "", ""),
        (small, "57 % of this client's samples", ""),
        (large, "50 % of batches of 32 and more", "50 % of batches of 32 and more"),
        ((1.0, 1.0, math.nan, math.nan, math.nan, math.nan), "", ""),  # of few samples nothing is asked
    ):
        look = LayerLook("fc1", 96, 0.1, 0.05, 0.0, now)
        for shown, words in ((None, alone), (known_by_heart, excused)):
            found = plant_words([look], first, rehearsed=lambda shown=shown: shown)
            assert bool(found) == bool(words)
            assert words in found
        assert plant_words([look], None) == "", "where nothing is known nothing is asked"


def test_what_can_be_taken_out_is_what_peeling_by_hand_takes_out() -> None:
    """Sample 0 is alone in the first sum, which frees 1 in the second; 2 and 3 are in no sum without each other."""
    signals = torch.zeros(64, 4)
    signals[0, 0] = signals[0, 1] = signals[1, 1] = 1
    signals[2:, 2] = signals[2:, 3] = 1
    for share, size in zip(readable_shares(signals, torch.zeros(64, 4)), SIZES, strict=True):
        assert 0 <= share <= 2.2 / size
    assert readable_shares(torch.eye(64), torch.zeros(64, 4)) == (1.0,) * len(SIZES)
    assert math.isnan(readable_shares(torch.eye(20), torch.zeros(20, 4))[-1]), "too few samples for large batches"


def test_a_first_model_with_traps_in_part_of_its_rows_is_held_against_a_fresh_one() -> None:
    place = ReadingPlace.of(net(), DIGITS.test.x)
    rng = torch.Generator().manual_seed(0)
    whole = plant_traps(place.layer, honest(0), place.features(), 48, "biases", rng, most=24)
    part = {**honest(0), place.layer.bias: torch.where(torch.arange(96) % 5 < 3, whole[place.layer.bias], 0.0)}
    assert "with an earlier or honest model" in asked(Guard(), part, None, {}, 0).why


def test_a_head_that_silences_others_without_muting_them_is_seen() -> None:
    """A hundredth of what the fished sample sends is left of each other one."""
    place = ReadingPlace.of(net(), DIGITS.test.x)
    fished, head = fishing(honest(4), place), head_of(net())
    mixed = {**fished, f"{head}.bias": fished[f"{head}.bias"].clone()}
    mixed[f"{head}.weight"] = torch.where(
        torch.arange(10)[:, None] == 3, fished[f"{head}.weight"], 0.01 * honest(4)[f"{head}.weight"]
    )
    assert "silences all but some" in asked(Guard(), mixed, None, {}, 0).why


def test_what_a_rectifier_that_works_in_place_hides_is_caught() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(inplace=True), nn.Linear(96, 10))
    model.load_state_dict(traps(honest(4), ReadingPlace.of(net(), DIGITS.test.x)))
    assert look_at(model, OWN)[0].alone > 0.9


def test_the_head_is_the_layer_that_samples_pass_last_wherever_it_is_listed() -> None:
    class HeadFirst(nn.Module):
        def __init__(self, head: nn.Module, hidden: nn.Module) -> None:
            super().__init__()
            self.head, self.hidden = head, hidden

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
            return logits

    model = net()
    model.load_state_dict(traps(honest(4), ReadingPlace.of(model, DIGITS.test.x)))
    (look,) = look_at(HeadFirst(model[3], model[1]), OWN)
    assert look.name == "hidden"
    assert look.alone > 0.9


def test_rows_for_the_places_of_a_sample_are_seen_too() -> None:
    """A layer that reads each of eight rows of a picture by itself: bins for these are bins."""

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 64), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.two(torch.relu(self.one(x.reshape(-1, 8, 8))).mean(1))
            return found

    torch.manual_seed(0)
    model = Places()
    assert plant_words(look_at(model, OWN), None) == ""
    with torch.no_grad():
        model.one.weight[:] = 0.3
        places = (OWN.x.reshape(-1, 8) @ model.one.weight[0]).quantile(torch.linspace(0.02, 0.98, 64))
        model.one.bias.copy_(-places)
        model.two.weight.copy_(model.two.weight[:, :1].expand(10, 64))
    assert "bins, by which" in plant_words(look_at(model, OWN), None)


def test_a_model_that_hardly_moved_is_not_tried_out_again_and_a_plant_that_creeps_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def counted(state: Tensors, client: ClientContext) -> list[LayerLook]:
        tried.append(1)
        return looks_of(state, client)

    monkeypatch.setattr(guard_module, "looks_of", counted)
    place, start = ReadingPlace.of(net(), DIGITS.test.x), honest(4)
    goal, stopped = traps(start, place), 0
    memory: dict[str, Tensor] = {}
    previous: Tensors | None = None
    for number in range(180):
        state = on_the_way(start, goal, max(0, number - 20) / 160, place.layer)
        verdict = asked(Guard(), state, previous, memory, number)
        if number == 20:
            assert len(tried) == 1, "the same model twenty times"
        if verdict.action != "accept":
            stopped = number
            break
        memory, previous = dict(verdict.memory or memory), state
    assert 21 < stopped < 140
    assert 5 < len(tried) < 0.7 * (stopped - 20)


def test_what_a_layer_behind_others_gained_is_no_plant_if_its_inputs_are_the_reason() -> None:
    behind = LayerLook("dense", 96, 0.1, 0.05, 0.0, (1.0,) * 6, first=False)
    at_first, all_of_it = torch.zeros(1, 6), torch.ones(6)
    assert "on its way" in plant_words([behind], at_first, redrawn=lambda name: 0.5 * all_of_it)
    assert plant_words([behind], at_first, redrawn=lambda name: 0.9 * all_of_it) == ""
    own = replace(behind, first=True)
    assert "on its way" in plant_words([own], at_first, redrawn=lambda name: all_of_it), "samples do not change"


def test_a_layer_that_is_drawn_anew_gives_away_what_an_honest_one_does() -> None:
    place, client = ReadingPlace.of(net(), DIGITS.test.x), ClientContext({}, net, OWN)
    planted = traps(honest(4), place)
    assert float(torch.tensor(looks_of(planted, client)[0].readable)[:5].mean()) > 0.8
    fresh = readable_by(fresh_looks(client))
    drawn = redrawn_readable(planted, client, place.layer.name)
    assert abs(float(drawn[:5].mean()) - float(fresh[0, :5].mean())) < 0.2
    assert float(drawn[4]) < 0.7


def small_table(rows: int, seed: int) -> Examples:
    """Four columns between 0 and 1, one of them yes or no."""
    rng = generator(seed, "table")
    x = torch.rand(rows, 4, generator=rng)
    x[:, 0] = (x[:, 0] > 0.5).float()
    return Examples(x, (x.sum(1) + 0.2 * torch.randn(rows, generator=rng) > 2).long())


@pytest.mark.parametrize("rows", [20, 106])
@pytest.mark.parametrize("width", [16, 128])
def test_honest_models_of_small_tables_are_accepted(rows: int, width: int) -> None:
    """With few columns neurons fire for nearly the same samples, in fresh models too: that alone is no plant."""

    def table_network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    examples = small_table(rows, 5)
    client = ClientContext(architecture=table_network, examples=examples)
    alike = 0.0
    for seed in range(5):
        with torch.random.fork_rng():
            torch.manual_seed(100 + seed)
            state = dict(table_network().state_dict())
        message = Message(0, SERVER, EVERYONE, "model", state)
        assert Guard().incoming(message, None, client).action == "accept"
        alike = max(alike, *(look.pairs for look in looks_of(state, client)))
    assert alike > 0.25  # which would be called bins if fresh models did not look the same


def two_classes(rows: int, seed: int) -> Examples:
    """Forty columns between 0 and 1, of which the sum decides."""
    rng = generator(seed, "two classes")
    x = torch.rand(rows, 40, generator=rng)
    return Examples(x, (x.sum(1) + 0.5 * torch.randn(rows, generator=rng) > 20).long())


def rectified_network() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 2))


@cache
def trained_on_a_table() -> Tensors:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = rectified_network()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = LocalTraining(lr=0.3, batch_size=20, epochs=15)
    change = train(model, state, two_classes(600, 1), training, generator(2))
    return {name: tensor + change[name] for name, tensor in state.items()}


def test_neurons_that_are_alike_in_honest_models_are_no_bins_and_a_rehearsal_is_held_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[int] = []

    def counted(client: ClientContext) -> Rehearsed | None:
        held.append(1)
        return rehearsed(client)

    def table_network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))

    monkeypatch.setattr(guard_module, "rehearsed", counted)
    with torch.random.fork_rng():
        torch.manual_seed(100)
        own, state = small_table(60, 5), table_network().state_dict()
    memory: dict[str, Tensor] = {}
    previous: Message | None = None
    looks = looks_of(state, ClientContext({}, table_network, own))
    assert "bins" in plant_words(looks, None), "beside no honest model it looks like bins"
    for number in range(3):
        moved = {name: tensor * (1 + 0.15 * number) for name, tensor in state.items()}
        message = Message(number, SERVER, EVERYONE, "model", moved)
        verdict = Guard().incoming(message, previous, ClientContext(memory, table_network, own))
        assert verdict.action == "accept", verdict.why
        memory, previous = dict(verdict.memory or memory), message
    assert len(held) == 1


def test_bins_in_a_table_are_seen_by_their_rows_where_the_gain_says_nothing() -> None:
    place = ReadingPlace.of(rectified_network(), two_classes(300, 5).x)
    honest_state = trained_on_a_table()
    planted = plant_brightness(place.layer, honest_state, place.inputs(), [place.packing()])
    client = ClientContext({}, rectified_network, two_classes(60, 4))
    for state, words in ((honest_state, ""), (planted, "have a parallel one: bins")):
        assert words in Guard().incoming(Message(0, SERVER, EVERYONE, "model", state), None, client).why


@pytest.mark.parametrize("width", [8, 12, 300])
def test_rows_at_a_small_angle_are_parallel_and_random_ones_are_not(width: int) -> None:
    rng = torch.Generator().manual_seed(width)
    honest_rows = torch.randn(128, width, generator=rng)
    assert look_at_rows(sketch_rows({"w": honest_rows}), {}, {"w": honest_rows}).alike < 0.1
    one = honest_rows[:1].expand(128, width)
    nearly = one + 0.1 * honest_rows[0].norm() / width**0.5 * torch.randn(128, width, generator=rng)
    assert look_at_rows(sketch_rows({"w": nearly}), {}, {"w": nearly}).alike > 0.9


def test_what_a_rehearsal_shows_survives_being_written_down() -> None:
    found = rehearsed(ClientContext({}, rectified_network, two_classes(48, 4)))
    assert found is not None
    again = Rehearsed.recalled(found.kept())
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert rehearsed(ClientContext({}, rectified_network, None)) is None
