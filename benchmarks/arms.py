"""Plants against guards: how slowly a plant may come, how it may hide, who sees it when, and what was read before.

    python benchmarks/arms.py [--seeds 10] [--arrivals 1 3 5 10 20 40] [--data digits] [--rows 128] [--batch 48]

`--claims 32`: the server says that so many rounds have passed.

Each federation trains honestly for some rounds. Then the server brings a plant in over `arrival` rounds, on top of its
honest model, and one client's guard looks at every model that it gets. After each round that the guard lets through,
the server reads what that client sends. A row tells in how many federations the plant was stopped, in which round of
its arrival (median), the largest share of a batch that was read in any round before, and the largest that the honest
models of the same rounds give away by themselves, read the same way: a plant that reads no more gained nothing.

    python benchmarks/arms.py --frontier [--seeds 10]

How much is read of plants that have come a part of the way, and how many clients see them there by what they are.

    python benchmarks/arms.py --cost [--data mnist]

What the gate over pairs and the guard cost beside local training, by the width of a perceptron.

    python benchmarks/arms.py --benign [--seeds 10] [--rounds 100] [--clients 4]

False alarms over benign rounds, with clients that come back after several or join late, a cohort that changes half-way
and a learning rate that drops, for several networks. Clients of a federation have 60, 60, 24 and 200 samples.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.dataset import Dataset, Examples
from fedspill.defense import ClientContext, Defense
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.guard import Guard
from fedspill.defenses.model_checks.rehearsal import rehearsed
from fedspill.defenses.model_checks.row_likeness import look_at_rows, sketch_rows
from fedspill.defenses.model_checks.suspected_plant import least_readable, likeness_words, looks_of, plant_words
from fedspill.defenses.wadm import Wadm
from fedspill.errors import NotApplicable
from fedspill.federation.local import state_of, train
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.planting.arrival import Way, on_the_way
from fedspill.planting.bins import BinDesign, plant_bins
from fedspill.planting.class_fishing import head_of, one_sample, plant_class
from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.peel import peel
from fedspill.planting.reading_place import ReadingPlace
from fedspill.planting.readings import rows_alone
from fedspill.planting.robbing_rows import plant_brightness
from fedspill.planting.trap_rows import plant_traps
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors, gradient

HONEST = 5  # rounds before the plant begins to arrive
TRAINING = LocalTraining(lr=0.1, batch_size=32)
BENIGN = LocalTraining(lr=0.1, batch_size=20)
EXACT = 1e-3  # of a column or pixel, root mean square: 60 dB
EPOCH = 600  # samples of a client whose epoch the cost of a guard is held against


def bins(design: BinDesign) -> Callable[[Tensors, ReadingPlace, int, torch.Generator], Tensors]:
    return lambda state, place, batch, rng: plant_bins(
        place.layer, state, place.inputs(), design, rng, [place.packing()]
    )


def partly(share: float) -> Callable[[Tensors, ReadingPlace, int, torch.Generator], Tensors]:
    """Knows the guard: bins in some rows only, in those that the next layer reads least, all else as it was."""

    def plant(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
        layer, design = place.layer, BinDesign(norms="usual")
        rows = state[layer.second_weight].abs().sum(0).argsort()[: int(share * place.rows)]
        planted = plant_bins(layer, state, place.inputs(), design, rng, [place.packing()], rows)
        second = state[layer.second_weight].clone()
        second[:, rows] = planted[layer.second_weight][:, rows]
        return {**planted, layer.second_weight: second}

    return plant


def hidden_in_dead_inputs(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows the guard: parallel rows are made unlike by weights on inputs that hardly ever vary."""
    planted = bins(BinDesign(norms="usual"))(state, place, batch, rng)
    still = place.features().std(0).argsort()[: max(4, place.inputs().shape[1] // 8)]
    still = still[place.features().std(0)[still] < 1e-3]
    weight = planted[place.layer.weight]
    noise = torch.randn(len(weight), len(still), generator=rng) * weight.norm(dim=1, keepdim=True)
    weight[:, still] = noise / max(len(still), 1) ** 0.5
    return planted


def traps(
    kind: Any, firing: float = 1.0, ladder: bool = False
) -> Callable[[Tensors, ReadingPlace, int, torch.Generator], Tensors]:
    return lambda state, place, batch, rng: plant_traps(
        place.layer,
        state,
        place.features(),
        max(2, int(batch / firing)),
        kind,
        rng,
        most=batch / 2 if ladder else 1.0,
    )


def held_short(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows the guard: rows by brightness stay a little unlike, and fire for nested sets of samples all the same."""
    goal = plant_brightness(place.layer, state, place.inputs(), [place.packing()])
    return on_the_way(state, goal, 0.94, place.layer)


def ten_rows(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows the gate over pairs: columns behind the bins are random, so that samples cancel in ten rows, not in two."""
    planted = bins(BinDesign(functionals=1, norms="usual"))(state, place, batch, rng)
    second = planted[place.layer.second_weight]
    size = second.norm(dim=0).mean()
    mixed = torch.randn(len(second), len(second) - 1, generator=rng)
    made = mixed @ torch.randn(len(second) - 1, second.shape[1], generator=rng)
    planted[place.layer.second_weight] = made * size / made.norm(dim=0)
    return planted


def cancelled(place: ReadingPlace, state: Tensors, weight: Tensor, bias: Tensor) -> Tensor:
    """What is left of ten neighbouring rows, weighed so that samples which wake all of them cancel.

    Nothing is vouched for: whoever holds the truth says which of these are samples, so this is what a server could read
    at most by such sums alone. Rows that a gate stopped are passed over.
    """
    order = state[place.layer.bias].argsort(descending=True)
    order = order[bias[order] != 0]
    heads = state[place.layer.second_weight].double()
    found = [torch.zeros(0, weight.shape[1], dtype=torch.float64)]
    for rows in order.unfold(0, len(heads), 1) if len(order) >= len(heads) else ():
        weights = torch.linalg.svd(heads[:, rows])[2][-1]
        part = float(weights @ bias[rows])
        if abs(part) > 1e-9:
            found.append((weights @ weight[rows])[None] / part)
    return place.packing().unpack(torch.cat(found))


def fishing(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    head = head_of(place.model)
    return plant_class(head, state, min(3, len(state[f"{head}.weight"]) - 1))


PLANTS: dict[str, Callable[[Tensors, ReadingPlace, int, torch.Generator], Tensors]] = {
    "Robbing the Fed": lambda state, place, batch, rng: plant_brightness(
        place.layer, state, place.inputs(), [place.packing()]
    ),
    "Robbing the Fed, held short": held_short,
    "trap weights, published": traps("published"),
    "class fishing": fishing,
    "bins": bins(BinDesign()),
    "bins, usual norms": bins(BinDesign(norms="usual")),
    "bins in half of the rows": partly(0.5),
    "bins in a fifth of the rows": partly(0.2),
    "bins, rows made unlike": hidden_in_dead_inputs,
    "trap, calibrated": traps("calibrated"),
    "trap, biases alone": traps("biases"),
    "trap, biases, rows fire for six": traps("biases", 6.0),
    "trap, biases, one to half of a batch": traps("biases", ladder=True),
    "bins, ten rows cancel": ten_rows,
}


def in_any_order(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Bins whose rows look up or down and stand in any order; a row is as large as any other one."""
    planted = bins(BinDesign(norms="usual"))(state, place, batch, rng)
    layer, rows = place.layer, place.rows
    order, signs = torch.randperm(rows, generator=rng), torch.randint(2, (rows,), generator=rng) * 2.0 - 1
    weight, bias = planted[layer.weight] * signs[:, None], planted[layer.bias] * signs
    return {**planted, layer.weight: weight[order], layer.bias: bias[order]}


def small_traps(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Calibrated traps in a quarter of the rows, a tenth as large as the others."""
    planted, layer = PLANTS["trap, calibrated"](state, place, batch, rng), place.layer
    chosen = torch.randperm(place.rows, generator=rng) < place.rows // 4
    weight = torch.where(chosen[:, None], 0.1 * planted[layer.weight], state[layer.weight])
    return {
        **state,
        layer.weight: weight,
        layer.bias: torch.where(chosen, 0.1 * planted[layer.bias], state[layer.bias]),
    }


def groups_of_eight(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """A third of the rows in groups of eight that are parallel, each group by an honest row's direction."""
    layer, state = place.layer, {name: tensor.clone() for name, tensor in state.items()}
    weight, bias, second = state[layer.weight], state[layer.bias], state[layer.second_weight]
    features = place.features().to(weight)
    for group in torch.randperm(place.rows, generator=rng)[: place.rows // 3].split(8):
        weight[group] = weight[group[0]].clone()
        heights = (features @ weight[group[0]]).sort().values
        places = (torch.arange(1, len(group) + 1) * len(heights)) // (len(group) + 1)
        bias[group] = -heights[places]
        second[:, group] = second[:, group[:1]].clone()
    return state


def head_traps(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows that gates look at hidden neurons: every class but one is said of the one sample in a batch that is extreme
    in some direction, so that the row of a class that no sample has holds that sample's activations.
    """
    layer = place.layer
    hidden = torch.relu(place.features() @ state[layer.weight].T + state[layer.bias])
    mean, classes = hidden.mean(0), len(state[layer.second_weight])
    ways = torch.randn(classes, hidden.shape[1], generator=rng)
    ways -= (ways @ mean)[:, None] * mean / mean.square().sum()
    heights = hidden @ ways.T
    sharp = 200 / heights.std(0) * (torch.arange(classes) > 0)
    highest = heights.quantile(1 - 1 / batch, dim=0)
    return {**state, layer.second_weight: ways * sharp[:, None], f"{layer.second}.bias": -highest * sharp}


BASE = 16  # rows that all samples reach, more than there are classes


def _beside_all(state: Tensors, place: ReadingPlace, rng: torch.Generator) -> tuple[Tensors, Tensor]:
    """Rows in random directions, as large as others, the first of which all samples reach; columns behind them random.

    Such columns make no two rows alike, and what all samples send back together to any row is a sum of what they send
    to BASE of them. The second is what rows say of the server's inputs, (inputs, rows), without biases.
    """
    layer, weight = place.layer, state[place.layer.weight]
    if len(weight) < 2 * BASE:
        raise NotApplicable("Too few rows to plant some beside those that all samples reach.")
    rows = torch.randn(weight.shape, generator=rng)
    rows = (rows - rows.mean(1, keepdim=True)) * weight.norm(dim=1).mean() / weight.shape[1] ** 0.5
    heights = place.features() @ rows.T
    bias = heights.std(0) - heights.amin(0)
    second = torch.randn(state[layer.second_weight].shape, generator=rng) * state[layer.second_weight].std()
    return {**state, layer.weight: rows, layer.bias: bias, layer.second_weight: second}, heights


def traps_inside_out(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows the gate over pairs: rows that all samples of a batch but one reach."""
    planted, heights = _beside_all(state, place, rng)
    bias = planted[place.layer.bias]
    bias[BASE:] = -heights[:, BASE:].quantile(1 / batch, dim=0)
    return planted


def gaps(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """The same by two rows each: one that is reached above the middle of a direction, one below it, but for a gap."""
    planted, heights = _beside_all(state, place, rng)
    layer, half = place.layer, (place.rows - BASE) // 2
    up, down = torch.arange(BASE, BASE + half), torch.arange(BASE + half, BASE + 2 * half)
    planted[layer.weight][down] = -planted[layer.weight][up]
    planted[layer.second_weight][:, down] = planted[layer.second_weight][:, up]
    planted[layer.bias][up] = -heights[:, up].quantile(0.5 + 0.5 / batch, dim=0)
    planted[layer.bias][down] = heights[:, up].quantile(0.5 - 0.5 / batch, dim=0)
    return planted


def gaps_in_a_category(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """Knows whom the gate compares: two rows that make up a category but for a gap, beside one that fires for it all.

    A table may have a column of zeros and ones; a row that looks at it from far enough fires for that category alone.
    """
    layer, inputs = place.layer, place.features()
    ones = inputs.mean(0).where(((inputs == 0) | (inputs == 1)).all(0), torch.tensor(torch.inf))
    column = int((ones - 0.5).abs().argmin())
    if not 0.2 < float(ones[column]) < 0.8:
        raise NotApplicable("No column of zeros and ones splits the inputs.")
    planted, heights = _beside_all(state, place, rng)
    weight, bias, second = (planted[name] for name in (layer.weight, layer.bias, layer.second_weight))
    half, far = (place.rows - BASE) // 2, 4 * float(heights.abs().max())
    up, down = torch.arange(BASE, BASE + half), torch.arange(BASE + half, BASE + 2 * half)
    inside = heights[inputs[:, column] == 1][:, up]
    gap = 0.5 * len(inputs) / (len(inside) * batch)  # on either side of the middle, for one sample of the batch
    weight[down], bias[up], bias[down] = -weight[up], -inside.quantile(0.5 + gap, 0), inside.quantile(0.5 - gap, 0)
    weight[0], bias[0] = 0, far / 2
    rows = torch.cat([up, down, torch.tensor([0])])
    weight[rows, column] += far
    bias[rows] -= far
    second[:] = second[:, :1]
    return planted


def gaps_by_five_rows(state: Tensors, place: ReadingPlace, batch: int, rng: torch.Generator) -> Tensors:
    """The same where no row fires for the category: either of two, and both, less the other one, are the first."""
    planted, layer, inputs = gaps_in_a_category(state, place, batch, rng), place.layer, place.features()
    weight, bias = planted[layer.weight], planted[layer.bias]
    column, far = int(weight[0].argmax()), float(weight[0].max())
    beside = (inputs * inputs[:, column, None]).mean(0)  # of all inputs, those that are in both
    apart = torch.stack([beside, inputs.mean(0) - beside, inputs[:, column].mean() - beside]).amin(0)
    apart = apart.where(((inputs == 0) | (inputs == 1)).all(0), torch.tensor(0.0))
    if not float(apart.max()) > 0.05:
        raise NotApplicable("No two columns of zeros and ones overlap.")
    weight[:3] = 0
    weight[:2, column] = far
    weight[:3, int(apart.argmax())] = far
    bias[:3] = far * torch.tensor([-0.5, -1.5, -0.5])
    return planted


def left_out(
    place: ReadingPlace, state: Tensors, weight: Tensor, bias: Tensor, *, pairs: bool, sums: Sequence[float] = ()
) -> Tensor:
    """What all samples send to a row, less what reaches it; or to two rows that share a column, less what reaches both.

    The first BASE rows say what all send, or `sums` of the first ones say it of a category. Nothing is vouched for, as
    in `cancelled`.
    """
    heads, half = state[place.layer.second_weight].double(), (place.rows - BASE) // 2
    base = torch.arange(len(sums)) if sums else (bias[:BASE] != 0).nonzero().flatten()
    groups = [[row, row + half] for row in range(BASE, BASE + half)] if pairs else [[r] for r in range(BASE, len(bias))]
    found = [torch.zeros(0, weight.shape[1], dtype=torch.float64)]
    for rows in groups if len(base) and bool((bias[base] != 0).all()) else ():
        fitted = torch.linalg.lstsq(heads[:, base], heads[:, rows[:1]]).solution[:, 0]
        shares = torch.tensor(sums, dtype=torch.float64) if sums else fitted
        part = float(bias[rows].sum() - shares @ bias[base])
        if bool((bias[rows] != 0).all()) and abs(part) > 1e-9:
            found.append((weight[rows].sum(0) - shares @ weight[base])[None] / part)
    return place.packing().unpack(torch.cat(found))


def behind_head(place: ReadingPlace, state: Tensors, sent: Tensors) -> Tensor:
    """The inputs whose activations stand alone in a row of the head, by the neurons that are awake and were sent."""
    layer, found = place.layer, [torch.zeros(0, place.features().shape[1], dtype=torch.float64)]
    weight, bias = state[layer.weight].double(), state[layer.bias].double()
    for row, part in zip(sent[layer.second_weight].double(), sent[f"{layer.second}.bias"].double(), strict=True):
        active = row / part
        awake = active > 1e-6
        if bool(part != 0) and int(awake.sum()) >= weight.shape[1]:
            found.append(torch.linalg.lstsq(weight[awake], (active - bias)[awake, None]).solution.T)
    return place.packing().unpack(torch.cat(found))


# Written after the guard's bars were set, and no bar was set on them.
UNSEEN: dict[str, Callable[[Tensors, ReadingPlace, int, torch.Generator], Tensors]] = {
    "bins that look up or down, in any order": in_any_order,
    "small traps in a quarter of the rows": small_traps,
    "groups of eight parallel rows": groups_of_eight,
    "traps in the head": head_traps,
    "traps inside out": traps_inside_out,
    "gaps between two rows": gaps,
    "gaps in a category": gaps_in_a_category,
    "gaps in a category, by five rows": gaps_by_five_rows,
}
SUMS = {"gaps in a category": (1.0,), "gaps in a category, by five rows": (1.0, 1.0, -1.0)}
IN_THE_HEAD = ("class fishing", "traps in the head")
# What looks at a model before training, and what acts in training.
GUARDS: dict[str, tuple[Defense | None, Defense | None]] = {
    "none": (None, None),
    "wadm": (Wadm(), None),
    "guard, changes alone": (Guard(examine=False), None),  # as in version 0.1, but for claimed rounds
    "guard": (Guard(), None),
    "gate": (None, GradientGate()),
    "gate over pairs, firing not compared": (None, GradientGate(pairs=True, firing=False)),
    "gate over pairs": (None, GradientGate(pairs=True)),
    "guard, gate over pairs": (Guard(), GradientGate(pairs=True)),
}


@dataclass(frozen=True)
class Federation:
    """Honest models round by round, and one client with a guard."""

    states: list[Tensors]
    model: nn.Module
    own: Examples
    known: Tensor


def federation(data: Dataset, rows: int, seed: int, rounds: int, classes: int = 0) -> Federation:
    """The client that is read has samples of so many classes only; 0: of all."""
    rng = torch.Generator().manual_seed(seed)
    model = make("models", "mlp", {"widths": [rows]}).build(data.shape, len(data.classes), seed=seed)
    order = torch.randperm(len(data.train), generator=rng)[:1200]
    clients = [data.train.take(part) for part in order.chunk(6)]
    if classes:
        own = order[torch.isin(data.train.y[order], torch.randperm(len(data.classes), generator=rng)[:classes])]
        clients[0] = data.train.take(own[:200])
    state, states = {name: tensor.clone() for name, tensor in state_of(model).items()}, []
    for number in range(rounds):
        states.append(state)
        asked = torch.randperm(len(clients), generator=rng)[:3].tolist()
        moved = [train(model, state, clients[index], TRAINING, generator(seed, number, index)) for index in asked]
        state = {name: tensor + sum(m[name] for m in moved) / len(moved) for name, tensor in state.items()}
    known = data.test.x[torch.randperm(len(data.test), generator=rng)[:600]]
    return Federation(states, model, clients[0], known)


def read(place: ReadingPlace, state: Tensors, batch: Examples, defense: Defense | None, plant: str) -> float:
    """The share of a batch that the server reads exactly out of what leaves the client: to 60 dB.

    In tables of few columns 30 dB are no reading: where sums of five rows seemed to read a third of a batch of four
    columns, they were as near to records that were not in it.
    """
    place.model.load_state_dict(state)
    training = LocalTraining(algorithm="fedsgd", batch_size=len(batch))
    sent = gradient(place.model, batch)
    if defense is not None:
        sent = defense.local(training).gradient_of(place.model, batch, generator(0, "gate"))
    seen = sent[place.layer.weight].double(), sent[place.layer.bias].double()
    if not bool(seen[1].any()):
        return 0.0
    network, packing = PlantedNetwork.of(place.model, state), place.packing()
    if plant == "class fishing":
        x, _ = one_sample(*seen)
        found = packing.unpack(x[None])
    elif plant == "bins, ten rows cancel":
        found = cancelled(place, state, *seen)
    elif plant == "traps inside out" or "gaps" in plant:
        found = left_out(place, state, *seen, pairs="gaps" in plant, sums=SUMS.get(plant, ()))
    elif plant == "traps in the head":
        found = behind_head(place, state, sent)
    else:
        found = max(
            (
                peel(network, packing, *seen, len(batch), readings).samples
                for readings in (None, rows_alone(place.rows))
            ),
            key=len,
        )
    if not len(found):
        return 0.0
    nearest = torch.cdist(found.flatten(1).double(), batch.x.flatten(1).double()).amin(0)
    return float((nearest < EXACT * batch.x[0].numel() ** 0.5).double().mean())


@dataclass
class Race:
    """What came of one federation."""

    stopped: int | None  # the round of its arrival
    before: float  # the most that was read in any round until then
    honest: float  # the most that the honest models of the same rounds give away; of the first where there are none


def race(made: Federation, plant: str, arrival: int, guard: str, batch: int, seed: int, way: Way, claims: int) -> Race:
    rng = torch.Generator().manual_seed(seed)
    place = ReadingPlace.of(made.model, made.known)
    defense, gate = GUARDS[guard]
    memory: dict[str, Tensor] = {}
    previous: Message | None = None
    most = 0.0
    samples = made.own.take(torch.arange(batch))
    honest = read(place, made.states[HONEST], samples, gate, plant)
    for number, own in enumerate(made.states[: HONEST + arrival]):
        step = number - HONEST + 1
        state = own
        if step > 0:
            goal = (PLANTS | UNSEEN)[plant](place.opened(own), place, batch, rng.manual_seed(seed))
            state = on_the_way(own, goal, step / arrival, None if plant in IN_THE_HEAD else place.layer, way)
        message = Message(number + (claims if step > 0 else 0), SERVER, EVERYONE, "model", state)
        client = ClientContext(memory, lambda: made.model, made.own)
        if defense is not None:
            verdict = defense.incoming(message, previous, client)
            if verdict.action != "accept":
                return Race(step, most, honest)
            memory = dict(verdict.memory) if verdict.memory is not None else memory
        previous = message
        if step > 0:
            most = max(most, read(place, state, samples, gate, plant))
            honest = max(honest, read(place, own, samples, gate, plant))
    return Race(None, most, honest)


def table(asked: argparse.Namespace) -> None:
    data: Dataset = make("datasets", asked.data).load(None)
    longest = HONEST + max(asked.arrivals)
    made = [federation(data, asked.rows, seed, longest, asked.classes) for seed in asked.seeds_used]
    known = UNSEEN if asked.unseen else PLANTS
    words = [word for word in asked.plants if word not in known]
    wanted = [name for name in known if not asked.plants or name in asked.plants or any(word in name for word in words)]
    print(f"{asked.data}, {asked.rows} rows, batches of {asked.batch}, n = {len(made)} federations, way: {asked.way}")
    print("| plant | arrival | guard | stopped | in round | read before, mean (most) | honest, mean (most) |")
    print("|---|---|---|---|---|---|---|")
    for plant in wanted:
        for arrival in asked.arrivals:
            for guard in asked.guards or GUARDS:
                races = []
                for one, seed in zip(made, asked.seeds_used, strict=True):
                    with suppress(NotApplicable):
                        races.append(race(one, plant, arrival, guard, asked.batch, seed, asked.way, asked.claims))
                if not races:
                    continue
                rounds = [one.stopped for one in races if one.stopped is not None]
                when = f"{statistics.median(rounds):g}" if rounds else ""
                before, honest = [one.before for one in races], [one.honest for one in races]
                print(
                    f"| {plant} | {arrival} | {guard} | {len(rounds)}/{len(races)} | {when} | "
                    f"{statistics.fmean(before):.2f} ({max(before):.2f}) | "
                    f"{statistics.fmean(honest):.2f} ({max(honest):.2f}) |",
                    flush=True,
                )


def frontier(asked: argparse.Namespace) -> None:
    """How much is read of a plant that has come so far, and how many clients see it there, however slowly it came."""
    data: Dataset = make("datasets", asked.data).load(None)
    made = [federation(data, asked.rows, seed, HONEST + 1) for seed in asked.seeds_used]
    seers = [Seer(one) for one in made]
    words = [word for word in asked.plants if word not in PLANTS]
    wanted = [
        name for name in PLANTS if not asked.plants or name in asked.plants or any(word in name for word in words)
    ]
    print(f"{asked.data}, {asked.rows} rows, batches of {asked.batch}, n = {len(made)} federations, way: {asked.way}")
    print("| plant | share of the way | read, mean (most) | seen | read where not seen, most | honest model |")
    print("|---|---|---|---|---|---|")
    for plant in wanted:
        for share in asked.shares:
            shares, seen, honest = [], [], []
            for one, seer, seed in zip(made, seers, asked.seeds_used, strict=True):
                place, own = ReadingPlace.of(one.model, one.known), one.states[HONEST]
                goal = PLANTS[plant](place.opened(own), place, asked.batch, torch.Generator().manual_seed(seed))
                state = on_the_way(own, goal, share, None if plant in IN_THE_HEAD else place.layer, asked.way)
                samples = one.own.take(torch.arange(asked.batch))
                shares.append(read(place, state, samples, None, plant))
                honest.append(read(place, own, samples, None, plant))
                seen.append(seer.sees(state))
            missed = max((part for part, found in zip(shares, seen, strict=True) if not found), default=0.0)
            print(
                f"| {plant} | {share} | {statistics.fmean(shares):.2f} ({max(shares):.2f}) | {sum(seen)}/{len(seen)} | "
                f"{missed:.2f} | {statistics.fmean(honest):.2f} |",
                flush=True,
            )


class Seer:
    """One client's guard, which asks of a model whether it is a plant by what it is, however it came."""

    def __init__(self, made: Federation) -> None:
        self.client = ClientContext({}, lambda: made.model, made.own)
        self.usual = cache(partial(rehearsed, self.client))
        self.least: Tensor | None = None
        for accepted in made.states[: HONEST + 1]:
            self.least = least_readable(looks_of(accepted, self.client), self.least)

    def sees(self, state: Tensors) -> bool:
        rows = look_at_rows(sketch_rows(state), {}, state)
        words = plant_words(looks_of(state, self.client), self.least, rehearsed=self.usual)
        return bool(likeness_words(rows) or words)


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp 128": ("mlp", {"widths": [128]}),
    "mlp 128-64": ("mlp", {"widths": [128, 64]}),
    "cnn": ("cnn-flat", {}),
    "vit": ("vit", {"hidden": 48, "layers": 2, "mlp": 96}),
    "resnet18": ("resnet18", {}),
}


def benign_states(
    model: nn.Module, clients: Sequence[Examples], training: LocalTraining, seed: int, rounds: int
) -> Iterator[Tensors]:
    """Rounds of three clients of the first half; half-way the other half come, with a tenth of the learning rate."""
    rng = torch.Generator().manual_seed(seed)
    state = {key: tensor.clone() for key, tensor in state_of(model).items()}
    cohort = len(clients) // 2
    for number in range(rounds):
        yield state
        late = number >= rounds // 2
        asked = (torch.randperm(cohort, generator=rng)[:3] + cohort * late).tolist()
        now = replace(training, lr=training.lr / 10) if late else training
        moved = [train(model, state, clients[index], now, generator(seed, number, index)) for index in asked]
        state = {
            key: tensor + sum(m[key] for m in moved) / len(moved) if key in moved[0] else tensor
            for key, tensor in state.items()
        }


def equal_clients(data: Dataset, seed: int) -> list[Examples]:
    """Twenty-four with sixty samples each."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=rng)[:1440]
    return [data.train.take(part) for part in order.chunk(24)]


KINDS = ("every round", "one of four", "joins late")
HELD = (60, 60, 24, 200)  # samples of a federation's clients, in turn


@dataclass
class Watcher:
    """One client with a guard."""

    kind: str
    own: Examples
    rng: torch.Generator
    memory: dict[str, Tensor]
    previous: Message | None = None
    alarms: int = 0
    why: str = ""  # the first of them
    rounds: int = 0
    seconds: float = 0.0

    def takes_part(self, number: int, rounds: int) -> bool:
        if self.kind == "one of four":
            return float(torch.rand(1, generator=self.rng)) < 0.25
        return self.kind == "every round" or number >= 0.55 * rounds

    def look(self, message: Message, model: nn.Module) -> None:
        began = time.process_time()
        verdict = Guard().incoming(message, self.previous, ClientContext(self.memory, lambda: model, self.own))
        self.seconds += time.process_time() - began
        self.rounds += 1
        if verdict.action == "accept":
            self.previous = message
            self.memory = dict(verdict.memory) if verdict.memory is not None else self.memory
        else:
            self.alarms += 1
            self.why = self.why or f"round {message.round}, {len(self.own)} samples: {verdict.why}"


def watchers(data: Dataset, seed: int, clients: int) -> Iterator[Watcher]:
    """One of each kind for each client of a federation."""
    for client in range(clients):
        rng = torch.Generator().manual_seed(1000 * seed + client)
        draw = rng if client else torch.Generator().manual_seed(seed)
        own = data.train.take(torch.randperm(len(data.train), generator=draw)[: HELD[client % len(HELD)]])
        for kind in KINDS:
            yield Watcher(kind, own, rng, {})


def watch(states: Iterator[Tensors], watching: Sequence[Watcher], model: nn.Module, rounds: int) -> None:
    """Shows the models of all rounds to the clients that take part in them; `model` is their code."""
    for number, state in enumerate(states):
        message = Message(number, SERVER, EVERYONE, "model", state)
        for one in watching:
            if one.takes_part(number, rounds):
                one.look(message, model)


def benign(asked: argparse.Namespace) -> None:
    data: Dataset = make("datasets", asked.data).load(None)
    print(f"{asked.data}, {asked.rounds} benign rounds, {len(asked.seeds_used)} federations x {asked.clients} clients")
    print("| network | takes part | alarms | rounds seen | clients with an alarm | ms a round | of an epoch |")
    print("|---|---|---|---|---|---|---|")
    for title in asked.networks or NETWORKS:
        name, options = NETWORKS[title]
        every: list[Watcher] = []
        for seed in asked.seeds_used:
            model = make("models", name, options).build(data.shape, len(data.classes), seed=seed)
            mine = list(watchers(data, seed, asked.clients))
            every += mine
            states = benign_states(model, equal_clients(data, seed), BENIGN, seed, asked.rounds)
            watch(states, mine, copy.deepcopy(model), asked.rounds)
            for one in mine:
                if one.why:
                    print(f"{title}, seed {seed}, {one.kind}, {one.alarms} alarms: {one.why}", flush=True)
        plain = epoch_ms(model, data, None)
        for kind in KINDS:
            all_of = [one for one in every if one.kind == kind]
            alarms, rounds = sum(one.alarms for one in all_of), sum(one.rounds for one in all_of)
            clients = sum(one.alarms > 0 for one in all_of)
            cost = 1000 * sum(one.seconds for one in all_of) / max(rounds, 1)
            share = f"{clients}/{len(all_of)} | {cost:.1f} | {cost / plain:.3f}"
            print(f"| {title} | {kind} | {alarms} | {rounds} | {share} |", flush=True)
        gates = [epoch_ms(model, data, GradientGate(pairs=pairs)) / plain for pairs in (False, True)]
        print(
            f"{title}: an epoch of {EPOCH} samples takes {plain:.0f} ms; with the gate {gates[0]:.2f} times as long, "
        )
        print(f"over pairs {gates[1]:.2f} times", flush=True)


def epoch_ms(model: nn.Module, data: Dataset, gate: Defense | None, epochs: int = 1) -> float:
    """CPU of a client's local training, the shortest of six."""
    training = replace(BENIGN, epochs=epochs)
    training = training if gate is None else gate.local(training)
    state, own = dict(state_of(model)), data.train.take(torch.arange(EPOCH))
    return shortest_ms(lambda number: train(model, state, own, training, generator(number)))


def shortest_ms(what: Callable[[int], object], times: int = 6) -> float:
    took = []
    for number in range(times):
        began = time.process_time()
        what(number)
        took.append(1000 * (time.process_time() - began))
    return min(took)


def look_ms(model: nn.Module, data: Dataset) -> float:
    """CPU of a guard that tries a model out, the shortest of twelve."""
    own, state = data.train.take(torch.arange(EPOCH)), {k: v.clone() for k, v in state_of(model).items()}
    change = train(model, state, own, BENIGN, generator(0))
    messages = [
        Message(number, SERVER, EVERYONE, "model", {key: state[key] + number * change.get(key, 0) for key in state})
        for number in (0, 1)
    ]
    memory = Guard().incoming(messages[0], None, ClientContext({}, lambda: model, own)).memory or {}
    return shortest_ms(
        lambda _: Guard().incoming(messages[1], messages[0], ClientContext(memory, lambda: model, own)), 12
    )


WIDE = {f"mlp {width}": ("mlp", {"widths": [width]}) for width in (128, 512, 1024)}


def cost(asked: argparse.Namespace) -> None:
    """What a round's looks cost beside its local training, by the width of a perceptron and the number of epochs."""
    data: Dataset = make("datasets", asked.data).load(None)
    print(f"{asked.data}, {EPOCH} samples, batches of {BENIGN.batch_size}; times as long as without")
    print("| network | epochs | ms | gate over pairs | on half of the samples | a look of the guard, ms |")
    print("|---|---|---|---|---|---|")
    for title in asked.networks or WIDE:
        name, options = (NETWORKS | WIDE)[title]
        model = make("models", name, options).build(data.shape, len(data.classes), seed=0)
        look = look_ms(model, data)
        for epochs in (1, 5):
            plain = epoch_ms(model, data, None, epochs)
            gates = [epoch_ms(model, data, GradientGate(pairs=True, part=part), epochs) / plain for part in (1.0, 0.5)]
            print(f"| {title} | {epochs} | {plain:.1f} | {gates[0]:.2f} | {gates[1]:.2f} | {look:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--arrivals", type=int, nargs="+", default=[1, 3, 5, 10, 20, 40])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--classes", type=int, default=0, help="that the client has which is read; 0: all")
    parser.add_argument("--way", choices=["line", "sphere"], default="sphere")
    parser.add_argument("--plants", nargs="*", default=[], help="names, or words of them")
    parser.add_argument("--guards", nargs="*", default=[], choices=list(GUARDS))
    parser.add_argument("--claims", type=int, default=0, help="rounds that the server says passed before the plant")
    parser.add_argument("--unseen", action="store_true", help="plants that no bar was set on")
    parser.add_argument("--benign", action="store_true")
    parser.add_argument("--frontier", action="store_true")
    ways = [0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    parser.add_argument("--shares", type=float, nargs="+", default=ways, help="of the way, for the frontier")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4, help="of each benign federation")
    parser.add_argument("--networks", nargs="*", default=[], choices=list(NETWORKS | WIDE))
    parser.add_argument("--cost", action="store_true")
    asked = parser.parse_args()
    asked.seeds_used = list(range(asked.first_seed, asked.first_seed + asked.seeds))
    torch.set_num_threads(1)
    if asked.frontier:
        frontier(asked)
    elif asked.cost:
        cost(asked)
    elif asked.benign:
        benign(asked)
    else:
        table(asked)


if __name__ == "__main__":
    main()
