"""Robbing the Fed as published (Fowl et al. 2022): rows that sort a batch by brightness, in place or as a module."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from statistics import NormalDist
from typing import final

import torch
from torch import Tensor, nn

from fedspill.planting.bins import place_rows
from fedspill.planting.first_layer import PlantedLayer
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.readings import Readings, quotients
from fedspill.training import Tensors

_LOWEST = 10.0  # deviations below the mean, as published: nothing lies below


def brightness_rows(known: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(rows, columns) weights that average an input and (rows,) biases, so that bins are equally likely.

    As published, brightness is taken to be normal, with the mean and deviation of inputs `known` (n, columns).
    """
    heights = known.double().mean(1)
    normal = NormalDist(float(heights.mean()), max(float(heights.std()), 1e-12))
    thresholds = [normal.mean - _LOWEST * normal.stdev, *(normal.inv_cdf(i / rows) for i in range(1, rows))]
    weight = torch.full((rows, known.shape[1]), 1 / known.shape[1], dtype=torch.float64)
    return weight, -torch.tensor(thresholds, dtype=torch.float64)


@torch.no_grad()
def plant_brightness(layer: PlantedLayer, state: Tensors, known: Tensor, packings: Sequence[InputPacking]) -> Tensors:
    """The state with the published rows in its first layer, and equal columns behind it."""
    planted = {name: tensor.clone() for name, tensor in state.items()}
    weight, bias, second = planted[layer.weight], planted[layer.bias], planted[layer.second_weight]
    w, b = brightness_rows(known, len(weight))
    place_rows(weight, bias, torch.arange(len(weight)), w, b, packings)
    second.copy_(second.mean(1, keepdim=True).expand_as(second))
    return planted


def strongest_quotients(readings: Readings, weight_gradient: Tensor, bias_gradient: Tensor, most: int) -> Tensor:
    """(at most `most`, features) what the readings hold, where there are more those of the largest mean gradient.

    That rule is the authors' own. Nothing vouches for any of them: two samples in one bin give their mean.
    """
    held, filled = quotients(readings, weight_gradient, bias_gradient)
    strength = readings.of(weight_gradient).mean(1).abs()[filled]
    return held[filled][strength.argsort(descending=True)[:most]]


@final
class ImprintModule(nn.Module):
    """The published block in front of any network: it reads the batch, and hands on an image of the same shape.

    It changes the architecture, so a client that runs code of its own does not run it.
    """

    def __init__(self, network: nn.Module, known: Tensor, rows: int) -> None:
        super().__init__()
        self.shape = tuple(known.shape[1:])
        columns = prod(self.shape)
        self.read, self.relu, self.write = nn.Linear(columns, rows), nn.ReLU(), nn.Linear(rows, columns)
        self.network = network
        w, b = brightness_rows(known.flatten(1), rows)
        with torch.no_grad():
            self.read.weight.copy_(w)
            self.read.bias.copy_(b)
            self.write.weight.fill_(1 / rows)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.network(self.write(self.relu(self.read(x.flatten(1)))).reshape(-1, *self.shape))
        return made
