"""Neurons that fire for one record only, written down instead of trained: the strongest plant known to us (after 004).

Pairs of units of the first layer measure how far a record is from the target along random directions: with ReLU and
with ELU, f(z) + f(-z) is 0 at 0 and grows to both sides. One more unit reads the attribute. A unit of the second layer
adds them up so that only the target gets through:

    s(x) = level * [attribute has the value] - steep * distance(x, target)

Nothing else in the network reads the units that were taken, so its predictions stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.planting.dense_network import Dense
from fedspill.planting.targets import Targets
from fedspill.training import Tensors

Columns: TypeAlias = Literal["zeroed", "kept"]
Code: TypeAlias = Literal["pair", "sign"]
_FURTHEST = 3.0  # deviations above the mean, within which nearly all records lie
_SAME = 1e-5  # of the usual distance: below it a shadow record is the target's very likeness, up to rounding


@dataclass(frozen=True)
class Shape:
    """How the neurons are built."""

    directions: int = 8
    reach: float = 50.0  # first-layer weights along a direction, in standard deviations of the shadow records
    level: float = 15.0  # what the target lifts the neuron to; more than local training moves it by
    margin: float = 60.0  # how far below zero a record lies that is `closer` to the target than any shadow record
    closer: float = 0.2  # the clients have more records than the shadow set, and so closer ones
    code: Code = "pair"  # a neuron for each value, or one whose sign tells them apart (ELU with alpha < 0 only)
    offset: float = 0.05  # how far below zero the sign code puts the target's other value
    output: float = 0.3  # weight of the neuron on the way to the logits
    columns: Columns = "zeroed"  # of what other neurons read from the units that were taken

    def units(self, dense: Dense, secret: bool) -> int:
        """First-layer units per target."""
        return self.directions * 2 + secret

    def rows(self, dense: Dense, secret: bool) -> int:
        """Neurons per target."""
        return 2 if secret and (self.code == "pair" or not dense.bend.is_bump) else 1


def neurons(units: int, rows: int, place: int, of: int) -> Tensor:
    """Which `rows` of a layer's neurons serve target `place` of `of`: the last ones of the layer, as published."""
    if rows * of > units:
        raise NotApplicable(f"{of} targets at once need {rows * of} neurons in a layer of {units}.")
    return torch.arange(rows) + units - rows * (of - place)


@torch.no_grad()
def plant_neurons(
    dense: Dense,
    state: Tensors,
    targets: Targets,
    chosen: Sequence[int],
    shadow: Tensor,
    shape: Shape,
    rng: torch.Generator,
) -> Tensors:
    """The state with neurons for the chosen targets; in networks with one hidden layer they cut half-spaces."""
    planted = {name: tensor.clone() for name, tensor in state.items()}
    if dense.hidden == 1:
        _plant_half_spaces(dense, planted, targets, chosen, shadow, shape)
        return planted
    secret = targets.column is not None
    first, second = state[dense.weight(0)], state[dense.weight(1)]
    each = shape.units(dense, secret)
    if each * len(chosen) > len(first):
        raise NotApplicable(
            f"{len(chosen)} targets at once need {each * len(chosen)} of {len(first)} first-layer units."
        )
    least_used = second.abs().sum(0).argsort()[: each * len(chosen)]
    if shape.columns == "zeroed":
        planted[dense.weight(1)][:, least_used] = 0
    for place, index in enumerate(chosen):
        units = least_used[place * each : (place + 1) * each]
        rows = neurons(len(second), shape.rows(dense, secret), place, len(chosen)).to(first.device)
        _plant_bump(dense, planted, targets, int(index), units, rows, shadow, shape, rng)
    return planted


def _plant_bump(
    dense: Dense,
    state: Tensors,
    targets: Targets,
    index: int,
    units: Tensor,
    rows: Tensor,
    shadow: Tensor,
    shape: Shape,
    rng: torch.Generator,
) -> None:
    """Writes one target's units and neurons into `state`."""
    x, known = targets.x.flatten(1)[index], targets.known()
    random = torch.randn(shape.directions, x.numel(), generator=rng).to(x) * known / (shadow.std(0) + 0.05)
    along = shape.reach * random / random.norm(dim=1, keepdim=True)
    both = torch.cat([along, -along])
    measuring = units[: len(both)]
    w1, b1, w2, b2 = (state[name] for layer in (0, 1) for name in (dense.weight(layer), dense.bias(layer)))
    w1[measuring], b1[measuring] = both, -(both @ x)
    distance = dense.bend((shadow - x) @ both.T).sum(1)  # (shadow,)
    steep = _steepness(distance, shape)
    w2[rows] = 0
    w2[rows[:, None], measuring] = -steep
    if targets.column is None:
        b2[rows] = shape.level
    else:
        reading = units[-1]
        w1[reading], b1[reading] = 0, 0
        quiet = min(shape.reach, 1.0)
        w1[reading, targets.column] = quiet
        if len(rows) == 1:  # the more frequent value lifts the neuron, the other leaves it just below zero
            up = float(shadow[:, targets.column].mean()) >= 0.5
            w2[rows, reading] = (shape.level + shape.offset) / quiet * (1 if up else -1)
            b2[rows] = -shape.offset if up else shape.level
        else:  # rows: value 0, value 1
            w2[rows, reading] = torch.tensor([-2.0, 2.0]).to(x) * shape.level / quiet
            b2[rows] = torch.tensor([1.0, -1.0]).to(x) * shape.level
    _connect(dense, state, rows, int(targets.y[index]), shape.output)


def _steepness(distance: Tensor, shape: Shape) -> float:
    """So steep that whoever is not the target, or its very likeness, ends up `margin` below zero."""
    apart = distance[distance > _SAME * distance.median()]
    nearest = shape.closer * float(apart.min()) if len(apart) else shape.reach
    return (shape.margin + shape.level) / nearest


def _connect(dense: Dense, state: Tensors, rows: Tensor, label: int, output: float) -> None:
    """Output weights that make the target's residual positive at its neurons, whatever the model says of it (App. A).

    What the neurons put out for everybody else is a constant, and is taken off the last bias.
    """
    weight, bias = state[dense.weight(dense.hidden)], state[dense.bias(dense.hidden)]
    away = torch.zeros(len(weight), device=weight.device)
    if len(weight) == 1:
        away[0] = output if label == 0 else -output
    else:
        away[label] = -output
    bias -= away * len(rows) * dense.bend.floor
    weight[:, rows] = away[:, None]


def _plant_half_spaces(
    dense: Dense, state: Tensors, targets: Targets, chosen: Sequence[int], shadow: Tensor, shape: Shape
) -> None:
    """With one hidden layer a neuron can only cut a half-space: the one in which the target lies furthest out.

    Its normal is the linear discriminant between the target and everybody else, which in many dimensions separates a
    single record from thousands.
    """
    known = targets.known() > 0
    data = shadow[:, known]
    centre = data.mean(0)
    spread = torch.cov(data.T.double())
    shrink = data.shape[1] / (data.shape[1] + len(data))  # few shadow records say little about many columns
    spread = (1 - shrink) * spread + (shrink + 1e-3) * spread.trace() / len(spread) * torch.eye(len(spread)).to(spread)
    w, b = state[dense.weight(0)], state[dense.bias(0)]
    secret = targets.column is not None
    for place, index in enumerate(chosen):
        x = targets.x.flatten(1)[int(index)]
        normal = torch.linalg.solve(spread, (x[known] - centre).double()).to(x)
        height = (data - x[known]) @ normal  # (shadow,) 0 at the target, below it almost everywhere
        usual, deviation = float(height.mean()), float(height.std())
        nearest = max(-usual - _FURTHEST * deviation, 0.1 * deviation + 1e-9)
        lift = 1.0  # activations of the size of the others'
        normal = normal * 3 * lift / nearest
        rows = neurons(len(w), 2 if secret else 1, place, len(chosen)).to(w.device)
        w[rows] = 0
        w[rows[:, None], known.nonzero().flatten()] = normal
        b[rows] = lift - normal @ x[known]
        if targets.column is not None:
            signs = torch.tensor([-1.0, 1.0]).to(x)
            w[rows, targets.column] = 2 * lift * signs
            b[rows] -= lift * (1 + signs)
        _connect(dense, state, rows, int(targets.y[int(index)]), shape.output)
