"""What a client can tell about a received model by looking at numbers alone: five statistics over all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from torch import Tensor

from fedspill.defenses.model_checks.layer_change import FloatArray, layer_change

NAMES = ("a neuron's step", "an input's step", "a layer's step", "a layer's largest neuron", "a neuron's weights")
STILL = 1e-12  # a step below which a layer did not move
_LONGEST = 64  # rounds, at most, that excuse a growth: as many as a history counts
_FEWEST = 8  # neurons of a layer among which one can stand out
_NARROWEST = 0.05  # deviation of log norms below which a layer counts as even
# The same of norms of neurons: where few of many neurons learn, most stay as even as they were drawn, and twice the
# others' size is no spike.
_EVEN = 0.1
_AVERAGES = (".running_mean", ".running_var")  # PyTorch's names for what a normalisation layer keeps of the data
_COMMON = 1.5  # the log of the z by which a layer's largest neuron comes to stand out in training: no less counts


@final
class UsualLayers(NamedTuple):
    """What a model's layers have been like, in logs: their usual steps, their largest neurons, and how far these stood
    out in the first model. That last number no later model changes: what grows round by round cannot take it along.
    """

    steps: Sequence[float]
    tops: Sequence[float]
    first: Sequence[float]


@final
class ChangeStatistics(NamedTuple):
    """The five statistics, larger is stranger, NaN where nothing can be said; and what the layers are like."""

    values: Sequence[float]
    layers: UsualLayers
    stand: Sequence[float]  # how far each layer's largest neuron stands out in this model
    unsound: str = ""  # a tensor with NaN, infinite or too large values; nothing else is said then

    @property
    def moved(self) -> bool:
        return max(self.layers.steps, default=-math.inf) > math.log(2 * STILL)


def read_change(
    before: Mapping[str, Tensor], now: Mapping[str, Tensor], usual: UsualLayers | None, rounds: int = 1
) -> ChangeStatistics:
    """Compares a model with the last accepted one, `rounds` before; `usual` is what its layers were like so far.

    1. the log of the largest robust z of any neuron's step (weights and bias together) among its layer's;
    2. the same for what is read from any one input or hidden unit (the columns of a weight);
       where a layer moves less than usual, a neuron must exceed the usual step to stand out;
    3. the largest growth of any layer's step against the usual one;
    4. the largest growth of any layer's largest neuron, weights and bias, beyond what the steps of its neurons in the
       rounds between add up to, which the third bounds; a layer that is smaller than the middle one, as those that
       begin with zeros are, may grow to its size;
    5. how much further any layer's largest neuron stands out among the others than it did in the first model.

    Steps are those of one round: so many rounds lead at most so many times as far.
    """
    many = math.log(rounds)
    layers = layers_of(now)
    neurons, inputs, steps, tops, stand, shapes = [], [], [], [], [], []
    for place, names in enumerate(layers):
        seen = layer_change([before[name] for name in names], [now[name] for name in names])
        total, top = float(np.add.reduce(seen.steps)), seen.sizes.item(-1)
        if not math.isfinite(total) or not math.isfinite(top):
            return ChangeStatistics((math.nan,) * len(NAMES), UsualLayers((), (), ()), (), _unsound(names, before, now))
        steps.append(math.log(math.sqrt(total / seen.entries) + STILL) - many)
        step = -math.inf if usual is None else usual.steps[place] + many  # of one entry
        neurons.append(_stands_out(seen.steps, seen.entries, step))
        for columns, entries in seen.inputs:
            inputs.append(_stands_out(columns, entries, step))
        tops.append(_log_norm(top))
        stand.append(_stands_out(seen.sizes, seen.entries, least=_EVEN))
        shapes.append(seen.entries / len(seen.sizes))
    old, first = _sizes(before, layers) if usual is None else (usual.tops, usual.first)
    growth = math.nan if usual is None else _most_above(steps, usual.steps)
    middle = sorted(old)[(len(old) - 1) // 2] if old else -math.inf
    before_it = [max(top, middle) for top in old]
    went = steps if usual is None else list(map(max, steps, usual.steps))
    ways = _ways(went, before_it, shapes, alike=usual is None)
    longer = min(rounds, _LONGEST) - 1
    larger = _most_above(tops, [top + math.log1p(longer * way) for top, way in zip(before_it, ways, strict=True)])
    further = _most_above(stand, [max(far, _COMMON) for far in first])
    values = (_most(neurons), _most(inputs), growth, larger, further)
    return ChangeStatistics(values, UsualLayers(steps, tops, first), stand)


def _ways(steps: Sequence[float], tops: Sequence[float], entries: Sequence[float], *, alike: bool) -> list[float]:
    """How far a neuron goes in a round, of each layer, as a share of its largest neuron's size.

    All are in logs but the entries of a neuron. Of a layer whose usual step is not known, the middle layer's share is
    taken (`alike`): what a layer did just now excuses nothing.
    """
    shares = [
        math.sqrt(many) * math.exp(min(step - top, 0.0)) for step, top, many in zip(steps, tops, entries, strict=True)
    ]
    return [sorted(shares)[(len(shares) - 1) // 2]] * len(shares) if alike and shares else shares


def layers_of(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Float tensors by layer: those whose names differ in the last part only.

    Averages of normalisation layers are left out. They go where the data are, however small steps are, and jump with a
    single outlier; what a client sends in training does not depend on them, and a trial on its samples does.
    """
    grouped: dict[str, list[str]] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel() and not name.endswith(_AVERAGES):
            grouped.setdefault(name.rpartition(".")[0], []).append(name)
    return list(grouped.values())


def _sizes(state: Mapping[str, Tensor], layers: Sequence[Sequence[str]]) -> tuple[list[float], list[float]]:
    """Of each layer of a model its largest neuron, and how far that stands out."""
    seen = [layer_change(tensors, tensors) for tensors in ([state[name] for name in names] for names in layers)]
    stand = [_stands_out(one.sizes, one.entries, least=_EVEN) for one in seen]
    return [_log_norm(one.sizes.item(-1)) for one in seen], stand


def _unsound(names: Sequence[str], before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    for name in names:
        seen = layer_change([before[name]], [now[name]])
        if not math.isfinite(float(seen.steps.sum()) + float(seen.sizes.sum())):
            return name
    return names[0]


def _stands_out(squares: FloatArray, entries: int, step: float = -math.inf, *, least: float = _NARROWEST) -> float:
    """The log of how many robust deviations the largest log norm lies above the middle one.

    squares: squared norms, ascending. The deviation is that of the upper half: a quarter of a layer must move oddly
    before it grows. It is at least `least`. Where entries usually move by the log `step`, the middle is at least the
    norm that makes.
    """
    units = n = len(squares)
    if n and squares.item(0) == 0:  # dead units stand still, and may be most of a layer
        squares = squares[np.searchsorted(squares, 0.0, "right") :]
        n = len(squares)
    if n < _FEWEST:
        return math.nan
    middle, upper, top = math.log(squares.item(n // 2)), math.log(squares.item(3 * n // 4)), math.log(squares.item(-1))
    deviation = max((upper - middle) / 0.6745, 2 * least)
    middle = max(middle, 2 * step + math.log(entries / units))
    return math.log1p(max(top - middle, 0.0) / deviation)


def _log_norm(square: float) -> float:
    return math.log(math.sqrt(square) + STILL)


def _most_above(values: Sequence[float], others: Sequence[float]) -> float:
    return _most([value - other for value, other in zip(values, others, strict=True)])


def _most(values: Sequence[float]) -> float:
    return max([value for value in values if value == value], default=math.nan)  # NaN is not itself
