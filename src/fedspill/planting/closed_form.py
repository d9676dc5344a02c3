"""Neurons that fire for one record only, with weights computed directly instead of trained (after paper 004).

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
from fedspill.planting.dense_network import DenseNetwork
from fedspill.planting.targets import Targets
from fedspill.training import Tensors

TakenColumns: TypeAlias = Literal["zeroed", "kept"]
ValueCode: TypeAlias = Literal["pair", "sign"]
_FURTHEST = 3.0  # standard deviations from the mean within which nearly all records lie
_SAME = 1e-5  # of the median distance; a shadow record that is nearer equals the target up to rounding


@dataclass(frozen=True)
class NeuronDesign:
    """How the neurons are built, and how strong their weights are."""

    directions: int = 8
    reach: float = 50.0  # first-layer weights along a direction, in standard deviations of the shadow records
    level: float = 15.0  # input of the neuron for its target; larger than what local training changes it by
    margin: float = 60.0  # how far below zero the neuron's input lies for a record at `closer` times the least distance
    closer: float = 0.2  # of the nearest shadow record; clients have more records than the shadow set, so nearer ones
    code: ValueCode = "pair"  # a neuron for each value, or one whose sign tells them apart (ELU with alpha < 0 only)
    offset: float = 0.05  # how far below zero the sign code puts the target's other value
    output: float = 0.3  # weight of the neuron on the way to the logits
    columns: TakenColumns = "zeroed"  # weights by which other neurons read the first-layer units that were taken

    def units_per_target(self, dense: DenseNetwork, secret: bool) -> int:
        """First-layer units per target."""
        return self.directions * 2 + secret

    def neurons_per_target(self, dense: DenseNetwork, secret: bool) -> int:
        """Neurons per target."""
        return 2 if secret and (self.code == "pair" or not dense.activation.rises_both_ways) else 1


def neurons_of_target(units: int, rows: int, place: int, of: int) -> Tensor:
    """Which `rows` of a layer's neurons serve target `place` of `of`: the last ones of the layer, as published."""
    if rows * of > units:
        raise NotApplicable(f"{of} targets at once need {rows * of} neurons in a layer of {units}.")
    return torch.arange(rows) + units - rows * (of - place)


@torch.no_grad()
def plant_neurons(
    dense: DenseNetwork,
    state: Tensors,
    targets: Targets,
    chosen: Sequence[int],
    shadow: Tensor,
    design: NeuronDesign,
    rng: torch.Generator,
) -> Tensors:
    """The state with neurons for the chosen targets; with one hidden layer each neuron fires in a half-space."""
    planted = {name: tensor.clone() for name, tensor in state.items()}
    if dense.hidden == 1:
        _plant_half_spaces(dense, planted, targets, chosen, shadow, design)
        return planted
    secret = targets.column is not None
    first, second = state[dense.weight(0)], state[dense.weight(1)]
    each = design.units_per_target(dense, secret)
    if each * len(chosen) > len(first):
        raise NotApplicable(
            f"{len(chosen)} targets at once need {each * len(chosen)} of {len(first)} first-layer units."
        )
    least_used = second.abs().sum(0).argsort()[: each * len(chosen)]
    if design.columns == "zeroed":
        planted[dense.weight(1)][:, least_used] = 0
    for place, index in enumerate(chosen):
        units = least_used[place * each : (place + 1) * each]
        many = design.neurons_per_target(dense, secret)
        rows = neurons_of_target(len(second), many, place, len(chosen)).to(first.device)
        _plant_bump(dense, planted, targets, int(index), units, rows, shadow, design, rng)
    return planted


def _plant_bump(
    dense: DenseNetwork,
    state: Tensors,
    targets: Targets,
    index: int,
    units: Tensor,
    rows: Tensor,
    shadow: Tensor,
    design: NeuronDesign,
    rng: torch.Generator,
) -> None:
    """Writes one target's units and neurons into `state`."""
    x, known = targets.x.flatten(1)[index], targets.known()
    random = torch.randn(design.directions, x.numel(), generator=rng).to(x) * known / (shadow.std(0) + 0.05)
    along = design.reach * random / random.norm(dim=1, keepdim=True)
    both = torch.cat([along, -along])
    measuring = units[: len(both)]
    w1, b1, w2, b2 = (state[name] for layer in (0, 1) for name in (dense.weight(layer), dense.bias(layer)))
    w1[measuring], b1[measuring] = both, -(both @ x)
    distance = dense.activation((shadow - x) @ both.T).sum(1)  # (shadow,)
    steep = _steepness(distance, design)
    w2[rows] = 0
    w2[rows[:, None], measuring] = -steep
    if targets.column is None:
        b2[rows] = design.level
    else:
        reading = units[-1]
        w1[reading], b1[reading] = 0, 0
        reading_weight = min(design.reach, 1.0)
        w1[reading, targets.column] = reading_weight
        if len(rows) == 1:  # the more frequent value lifts the neuron, the other leaves it just below zero
            up = float(shadow[:, targets.column].mean()) >= 0.5
            w2[rows, reading] = (design.level + design.offset) / reading_weight * (1 if up else -1)
            b2[rows] = -design.offset if up else design.level
        else:  # rows: value 0, value 1
            w2[rows, reading] = torch.tensor([-2.0, 2.0]).to(x) * design.level / reading_weight
            b2[rows] = torch.tensor([1.0, -1.0]).to(x) * design.level
    _connect(dense, state, rows, int(targets.y[index]), design.output)


def _steepness(distance: Tensor, design: NeuronDesign) -> float:
    """So steep that the neuron's input is `margin` below zero for all records that do not equal the target."""
    apart = distance[distance > _SAME * distance.median()]
    nearest = design.closer * float(apart.min()) if len(apart) else design.reach
    return (design.margin + design.level) / nearest


def _connect(dense: DenseNetwork, state: Tensors, rows: Tensor, label: int, output: float) -> None:
    """Output weights that make the target's residual positive at its neurons, whatever the model says of it (App. A).

    What the neurons put out for everybody else is a constant, and is taken off the last bias.
    """
    weight, bias = state[dense.weight(dense.hidden)], state[dense.bias(dense.hidden)]
    away = torch.zeros(len(weight), device=weight.device)
    if len(weight) == 1:
        away[0] = output if label == 0 else -output
    else:
        away[label] = -output
    bias -= away * len(rows) * dense.activation.resting_output
    weight[:, rows] = away[:, None]


def _plant_half_spaces(
    dense: DenseNetwork, state: Tensors, targets: Targets, chosen: Sequence[int], shadow: Tensor, design: NeuronDesign
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
        rows = neurons_of_target(len(w), 2 if secret else 1, place, len(chosen)).to(w.device)
        w[rows] = 0
        w[rows[:, None], known.nonzero().flatten()] = normal
        b[rows] = lift - normal @ x[known]
        if targets.column is not None:
            signs = torch.tensor([-1.0, 1.0]).to(x)
            w[rows, targets.column] = 2 * lift * signs
            b[rows] -= lift * (1 + signs)
        _connect(dense, state, rows, int(targets.y[int(index)]), design.output)
