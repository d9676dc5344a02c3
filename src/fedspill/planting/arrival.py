"""Slow arrival: what a patient server plants comes in over several rounds, so that no step of the model is a jump."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.planting.first_layer import PlantedLayer
from fedspill.training import Tensors

Way: TypeAlias = Literal["line", "sphere"]


def share_arrived(number: int, first: int, rounds: int) -> float:
    """Which share of the way a plant has come in round `number`, of `rounds` rounds from round `first` on."""
    return min(max((number - first + 1) / max(rounds, 1), 0.0), 1.0)


@torch.no_grad()
def on_the_way(
    honest: Tensors, goal: Tensors, share: float, layer: PlantedLayer | None, way: Way = "sphere"
) -> Tensors:
    """The model between the honest one and the plant.

    On a straight line rows shrink on their way, which shows. On the "sphere" rows of the first layer and columns of the
    second keep the norms that lie between those at both ends.
    """
    if share >= 1:
        return dict(goal)
    moved = {
        name: tensor + (share * (goal[name] - tensor)).to(tensor) if tensor.is_floating_point() else goal[name]
        for name, tensor in honest.items()
    }
    if way == "line" or layer is None:
        return moved
    start, end, now = (_rows(state, layer).norm(dim=1) for state in (honest, goal, moved))
    factor = _between(start, end, now, share)
    moved[layer.weight] = moved[layer.weight] * factor[:, None]
    moved[layer.bias] = moved[layer.bias] * factor
    start, end, now = (state[layer.second_weight].norm(dim=0) for state in (honest, goal, moved))
    moved[layer.second_weight] = moved[layer.second_weight] * _between(start, end, now, share)
    return moved


def _rows(state: Tensors, layer: PlantedLayer) -> Tensor:
    return torch.cat([state[layer.weight], state[layer.bias][:, None]], 1)


def _between(start: Tensor, end: Tensor, now: Tensor, share: float) -> Tensor:
    return ((1 - share) * start + share * end) / now.clamp_min(1e-30)
