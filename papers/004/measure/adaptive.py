"""Attackers who know the guard and, being the server, all that it remembers: how far they get, what that tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.defenses.gradient_gate import GradientGate
from fedspill.federation.local import train
from fedspill.models.mlp import Mlp
from fedspill.planting.closed_form import NeuronDesign, neurons_of_target, plant_neurons
from fedspill.seeds import generator
from fedspill.training import Tensors

from .adaptive_plants import part_way
from .experiment import (
    FOR_SGD,
    SGD,
    Repetition,
    plants,
    pooled,
    rows_of,
    score_of,
    through_a_round,
)
from .readings import numbers
from .settings import Case, model_area, on_cpu, trained
from .watching import Watchman, sent, watchman

SHARES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the way from the honest model to the plant
# Plants with smaller weights from the start: they fire for more records, and stand out less.
WEAKER = {
    f"reach {reach:g}": replace(FOR_SGD, reach=reach, level=level, margin=margin, closer=1.0)
    for reach, level, margin in ((5.0, 2.0, 10.0), (2.0, 1.0, 5.0), (1.0, 0.5, 3.0), (0.5, 0.25, 1.5))
}
COPIES = 16  # pairs of neurons for one target, where a plant is spread
SLOW = 30  # rounds of a plant that is brought in by steps
LARGER = 30.0  # how much larger all neurons are made, so that a plant among them stands out less
_HALVINGS = 14


def adapt(case: Case, folder: Path) -> dict[str, Any]:
    """Readings of members, alarms and the model's area for each way of hiding."""
    began = time.time()
    rep = _members(trained(case, folder))
    after = case.setting.rounds
    honest, ours = rep.history[after], watchman(rep.history[:after])
    rows = rows_of(rep, "closed")
    single, spread = plants(rep, "closed", after), [_spread(rep, honest, i) for i in range(len(rep.targets))]
    wide = neurons_of_target(len(honest[rep.dense.bias(1)]), 2 * COPIES, 0, 1)
    line: dict[str, Any] = {**case.cells(), "values": rep.values.tolist(), "area": model_area(rep, honest)}
    line["small"] = {}
    for share in SHARES:
        states = [part_way(honest, state, share) for state in single]
        line["small"][str(share)] = {**_read(rep, states, rows), "alarms": [_alarm(ours, after, s) for s in states]}
    for name, full, at in (("just below", single, rows), ("spread, just below", spread, wide)):
        found = [_furthest(lambda s, full=state: not _alarm(ours, after, part_way(honest, full, s))) for state in full]  # type: ignore[misc]
        states = [part_way(honest, state, share) for state, share in zip(full, found, strict=True)]
        line[name] = {**_read(rep, states, at), "shares": found}
    line["spread"] = {**_read(rep, spread, wide), "alarms": [_alarm(ours, after, state) for state in spread]}
    line["weaker"] = {name: weak(rep, ours, after, shape) for name, shape in WEAKER.items()}
    line["gated"] = {"gated": _gated(rep, single, range(len(single)), rows), "areas": line["small"]["1.0"]["areas"]}
    line["claims a later round"] = [_alarm(ours, after + 10**6, state) for state in single]
    return {**line, "seconds": time.time() - began}


def slow(case: Case, folder: Path) -> dict[str, Any]:
    """The same where a plant is brought in by steps, each as far as the guard lets pass."""
    began = time.time()
    rep = _members(trained(case, folder, case.setting.rounds + SLOW))
    after, rows = case.setting.rounds, rows_of(rep, "closed")
    honest = rep.history[after]
    weaker = plants(rep, "closed", after, next(iter(WEAKER.values())))
    ways = {"slowly": plants(rep, "closed", after), "slowly, weaker": weaker}
    if not case.elu:
        ways["slowly, all larger"] = [_all_larger(rep, honest, state) for state in weaker]
    some = list(range(0, len(weaker), max(1, len(weaker) // 8)))
    line: dict[str, Any] = {**case.cells(), "values": rep.values[some].tolist()}
    line["area"] = model_area(rep, rep.history[after + SLOW])
    for name, full in ways.items():
        brought = [_slowly(rep, after, full[i]) for i in some]
        states = [state for _, state in brought]
        read = {**_read(rep, states, rows), "gated": _gated(rep, states, some, rows)}
        line[name] = {**read, "shares": [way for way, _ in brought]}
    return {**line, "seconds": time.time() - began}


def weak(rep: Repetition, ours: Watchman, after: int, shape: NeuronDesign) -> dict[str, Any]:
    """Alarms at plants of that shape, and what is read from them."""
    states = plants(rep, "closed", after, shape)
    return {**_read(rep, states, rows_of(rep, "closed")), "alarms": [_alarm(ours, after, state) for state in states]}


def _members(rep: Repetition) -> Repetition:
    """With the members as the only targets."""
    inside = rep.members.nonzero().flatten()
    kept = inside.to(rep.targets.x.device)
    targets = replace(rep.targets, x=rep.targets.x[kept], y=rep.targets.y[kept])
    return replace(
        rep, targets=targets, records=rep.records[kept], values=rep.values[inside], members=rep.members[inside]
    )


def _spread(rep: Repetition, honest: Tensors, index: int) -> Tensors:
    """Many neurons for one target, so that none stands out from the others of its layer."""
    room = (len(honest[rep.dense.weight(0)]) // COPIES - 1) // 2
    shape = replace(FOR_SGD, directions=min(FOR_SGD.directions, room), output=FOR_SGD.output / COPIES)
    rng = generator(rep.seed, "spread", index)
    return plant_neurons(rep.dense, honest, rep.targets, [index] * COPIES, rep.shadow, shape, rng)


def _all_larger(rep: Repetition, honest: Tensors, planted: Tensors) -> Tensors:
    """With all that the plant left alone made larger, layer by layer, and the head smaller: ReLU predicts the same."""
    found, factor = dict(planted), 1.0
    for layer in range(rep.dense.hidden + 1):
        last = layer == rep.dense.hidden
        by = LARGER**-rep.dense.hidden if last else LARGER
        factor *= by
        for name, many in ((rep.dense.weight(layer), by), (rep.dense.bias(layer), factor)):
            found[name] = torch.where(planted[name] == honest[name], many * planted[name], planted[name])
    return found


def _read(rep: Repetition, states: Sequence[Tensors], rows: Tensor) -> dict[str, Any]:
    """What the pooled gradient and a round of SGD tell, over all copies; and what the model is worth."""
    found: dict[str, Any] = {}
    for setting, signal in (("pooled", pooled(rep, states, rows)), ("sgd", through_a_round(rep, states, rows, SGD))):
        pairs = torch.nan_to_num(signal).reshape(len(states), -1, 2).sum(1)
        found[setting] = numbers(score_of(rep, "closed", pairs))
    found["areas"] = [model_area(rep, state) for state in states[:4]]
    return found


def _gated(rep: Repetition, states: Sequence[Tensors], which: Sequence[int], rows: Tensor) -> list[float]:
    """What the update of the target's client alone tells where it gates gradients."""
    gated, found = GradientGate().local(replace(SGD, batch_size=100)), []
    widths, activation = tuple(len(states[0][rep.dense.bias(i)]) for i in range(rep.dense.hidden)), rep.dense.activation
    spec = Mlp(widths=widths, activation="elu" if activation.elu else "relu", alpha=activation.alpha, logits=1)
    model = spec.build(tuple(rep.records.shape[1:]), 2, seed=0)
    for state, index in zip(states, which, strict=True):
        record = rep.records[index].cpu()
        own = next(own for own in rep.clients if bool((own.x == record).all(1).any()))
        step = train(model, on_cpu(state), own, gated, generator(rep.seed, "gated", index))
        found.append(-step[rep.dense.bias(1)][rows].double())
    return numbers(score_of(rep, "closed", torch.nan_to_num(torch.stack(found))))


def _alarm(ours: Watchman, number: int, state: Tensors) -> bool:
    return ours.judge(sent(number, state)).action != "accept"


def _furthest(accepted: Callable[[float], bool]) -> float:
    """The largest share of the way that is accepted, by halving on a logarithmic scale; 0 where none is."""
    low, high = -7.0, 0.0
    if accepted(1.0):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(10**middle) else (low, middle)
    return 10**low if low > -7 else 0.0


def _slowly(rep: Repetition, after: int, planted: Tensors) -> tuple[list[float], Tensors]:
    """Beside honest training, each round as far towards the plant as the guard lets pass.

    The way done, by round, and the model that the clients have in the end.
    """
    ours, honest, done, state = watchman(rep.history[:after]), rep.history[after], [0.0], rep.history[after]
    for number in range(after, after + SLOW):
        base = rep.history[number]

        def at(share: float, base: Tensors = base) -> Tensors:
            """What the plant changes is on its way, all else is honest."""
            way = part_way(base, planted, share)
            return {name: torch.where(planted[name] != honest[name], way[name], base[name]) for name in base}

        start = done[-1]
        step = _furthest(lambda s, at=at, start=start, n=number: not _alarm(ours, n, at(start + s * (1 - start))))  # type: ignore[misc]
        done.append(start + step * (1 - start))
        state = at(done[-1])
        ours.meet(sent(number, state))
    return done[1:], state
