"""What a client can tell about a received model by looking at numbers alone: four statistics over all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NAMES = ("a neuron's step", "an input's step", "a layer's step", "a layer's largest weight")
_TINY = 1e-12
_FEWEST = 8  # neurons of a layer among which one can stand out


@dataclass(frozen=True, eq=False)
class Reading:
    """The four statistics (4,), larger is stranger, NaN where nothing can be said; and the steps of all layers."""

    values: Tensor
    steps: Tensor  # (layers,) root mean square change per round


@torch.no_grad()
def read_change(before: Mapping[str, Tensor], now: Mapping[str, Tensor], rounds: int, steps: Tensor | None) -> Reading:
    """Compares a model with the last accepted one, `rounds` before; `steps` are the layers' steps at that time.

    1. the log of the largest robust z of any neuron's step (weights and bias together) among its layer's;
    2. the same for what is read from any one input or hidden unit (the columns of a weight);
    3. the largest growth of any layer's step against the step before;
    4. the largest growth of any layer's largest weight.
    """
    layers = _layers(now)
    names = [name for layer in layers for name in layer]
    news, olds = [now[name] for name in names], [before[name] for name in names]
    deltas = torch._foreach_sub(news, olds)
    changes = dict(zip(names, deltas, strict=True))
    peaks = [torch.stack(torch._foreach_norm(tensors, math.inf)).tolist() for tensors in (news, olds)]
    lengths = dict(zip(names, torch.stack(torch._foreach_norm(deltas)).tolist(), strict=True))
    tops = [dict(zip(names, of, strict=True)) for of in peaks]
    new_steps = torch.tensor([_size([(lengths[n], changes[n].numel()) for n in layer]) for layer in layers]) / max(
        rounds, 1
    )
    neurons = [_stands_out(_row_norms([changes[name] for name in layer])) for layer in layers]
    matrices = [changes[name] for name in names if changes[name].ndim >= 2]
    columns = [_stands_out(matrix.transpose(0, 1).flatten(1).norm(dim=1)) for matrix in matrices]
    growth = math.nan if steps is None else float(((new_steps + _TINY) / (steps + _TINY)).log().max())
    largest = [
        math.log((max(tops[0][n] for n in layer) + _TINY) / (max(tops[1][n] for n in layer) + _TINY))
        for layer in layers
    ]
    values = [_most(neurons), _most(columns), growth, _most(largest) / max(rounds, 1)]
    return Reading(torch.tensor(values, dtype=torch.float64), new_steps)


def _layers(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Float tensors by layer: those whose names differ in the last part only."""
    grouped: dict[str, list[str]] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel():
            grouped.setdefault(name.rpartition(".")[0], []).append(name)
    return list(grouped.values())


def _size(parts: list[tuple[float, int]]) -> float:
    """Root mean square of a layer whose tensors have these norms and numbers of entries."""
    return math.sqrt(sum(length**2 for length, _ in parts) / sum(entries for _, entries in parts))


def _row_norms(tensors: list[Tensor]) -> Tensor:
    """(units,) the norm of all that belongs to each unit, where the layer's tensors agree on what a unit is."""
    units = {len(tensor) for tensor in tensors if tensor.ndim}
    if len(units) != 1:
        return torch.zeros(0)
    rows: Tensor = torch.linalg.vector_norm(torch.cat([t.reshape(len(t), -1) for t in tensors], 1), dim=1)
    return rows


def _stands_out(norms: Tensor) -> float:
    """The log of how many robust deviations the largest log norm lies above the middle one."""
    norms = norms[norms > 0]  # units that are dead at all clients do not move, and may be most of a layer
    if len(norms) < _FEWEST:
        return math.nan
    logs = (norms + _TINY).log()
    middle = logs.median()
    deviation = 1.4826 * (logs - middle).abs().median()
    return math.log(float((logs.max() - middle) / deviation.clamp(min=0.05)) + 0.1)


def _most(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return max(known, default=math.nan)
