"""What a client can tell about a received model by looking at numbers alone: four statistics over all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedspill.defenses.watch.look import Array, Look, look, top_of

NAMES = ("a neuron's step", "an input's step", "a layer's step", "a layer's largest weight")
LONGEST = 32  # rounds that may have passed: a server can say any number
STILL = 1e-12  # a step below which a layer did not move
_FEWEST = 8  # neurons of a layer among which one can stand out
_NARROWEST = 0.05  # deviation of log norms below which a layer counts as even


@dataclass(frozen=True)
class Usual:
    """What a model's layers have been like: their usual steps and, now, their largest weights, in logs."""

    steps: tuple[float, ...]
    tops: tuple[float, ...]


@dataclass(frozen=True)
class Reading:
    """The four statistics, larger is stranger, NaN where nothing can be said; and what the layers are like."""

    values: tuple[float, ...]
    layers: Usual  # the steps are those per round
    rounds: int  # that the steps were divided by
    unsound: str = ""  # a tensor with NaN, infinite or too large values; nothing else is said then

    @property
    def moved(self) -> bool:
        return max(self.layers.steps, default=-math.inf) > math.log(2 * STILL)


def read_change(before: Mapping[str, Tensor], now: Mapping[str, Tensor], rounds: int, usual: Usual | None) -> Reading:
    """Compares a model with the last accepted one, `rounds` before; `usual` is what its layers were like so far.

    1. the log of the largest robust z of any neuron's step (weights and bias together) among its layer's;
    2. the same for what is read from any one input or hidden unit (the columns of a weight);
       where a layer moves less than usual, a neuron must exceed the usual step to stand out;
    3. the largest growth of any layer's step against the usual one;
    4. the largest growth of any layer's largest weight.

    A step over several rounds is divided by their number, of which a server can claim `LONGEST` at most.
    """
    rounds = min(max(abs(rounds), 1), LONGEST)
    neurons, inputs, steps, tops = [], [], [], []
    layers = _layers(now)
    for place, names in enumerate(layers):
        looks = [look(before[name], now[name]) for name in names]
        rows, total = _together(looks)
        entries = sum([seen.entries for seen in looks])
        if not math.isfinite(total):
            return Reading((math.nan,) * len(NAMES), Usual((), ()), rounds, _unsound(names, looks))
        steps.append(math.log(math.sqrt(total / entries) / rounds + STILL))
        step = -math.inf if usual is None else usual.steps[place] + math.log(rounds)  # of one entry
        tops.append(math.log(max([seen.top for seen in looks]) + STILL))
        neurons.append(_stands_out(rows, entries, step))
        inputs += [_stands_out(seen.columns, seen.entries, step) for seen in looks if seen.columns is not None]
    old = usual.tops if usual else [math.log(max(top_of(before[n]) for n in names) + STILL) for names in layers]
    growth = math.nan if usual is None else _most_above(steps, usual.steps)
    values = (_most(neurons), _most(inputs), growth, _most_above(tops, old) / rounds)
    return Reading(values, Usual(tuple(steps), tuple(tops)), rounds)


def _layers(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Float tensors by layer: those whose names differ in the last part only."""
    grouped: dict[str, list[str]] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel():
            grouped.setdefault(name.rpartition(".")[0], []).append(name)
    return list(grouped.values())


def _together(looks: Sequence[Look]) -> tuple[Array | None, float]:
    """(units,) the squared step of each unit, where the tensors agree on what a unit is; and the sum of all."""
    units = len(looks[0].rows)
    if all([len(seen.rows) == units for seen in looks]):
        rows = sum([seen.rows for seen in looks[1:]], looks[0].rows)
        return rows, float(np.add.reduce(rows))
    return None, sum(float(seen.rows.sum()) for seen in looks)


def _unsound(names: Sequence[str], looks: Sequence[Look]) -> str:
    sums = [float(seen.rows.sum()) for seen in looks]
    return next((name for name, total in zip(names, sums, strict=True) if not math.isfinite(total)), names[0])


def _stands_out(squares: Array | None, entries: int, step: float) -> float:
    """The log of how many robust deviations the largest log norm lies above the middle one, from squared norms.

    The deviation is that of the upper half: a quarter of a layer must move oddly before it grows. Where entries usually
    move by the log `step`, the middle is at least the norm that makes.
    """
    if squares is None or len(squares) < _FEWEST:
        return math.nan
    moved = np.sort(squares)
    if moved[0] == 0:  # dead units stand still, and may be most of a layer
        moved = moved[np.searchsorted(moved, 0.0, "right") :]
    n = len(moved)
    if n < _FEWEST:
        return math.nan
    middle, upper, top = [0.5 * math.log(moved[place]) for place in (n // 2, (3 * n) // 4, n - 1)]
    deviation = max((upper - middle) / 0.6745, _NARROWEST)
    middle = max(middle, step + 0.5 * math.log(entries / len(squares)))
    return math.log1p(max(top - middle, 0.0) / deviation)


def _most_above(values: Sequence[float], others: Sequence[float]) -> float:
    return max([value - other for value, other in zip(values, others, strict=True)], default=math.nan)


def _most(values: Sequence[float]) -> float:
    return max([value for value in values if value == value], default=math.nan)  # NaN is not itself
