"""Trap weights (Boenisch et al. 2023): rows of the first layer that fire for hardly any sample, so that some fire once.

As published, half of a row's weights are negative and the other half are the same, made positive and a little smaller.
How rarely such a row fires depends on the data. A server that has inputs of the kind need not guess: it sets each bias
so that its row fires for one sample in a batch. That works with honest weights too, of which nothing but the biases
moves.

Where found samples are taken out of the other rows (peel.py), rows that fire for several samples are of use as well,
and those that no row singles out are left to them. So rows then fire for one sample, for half of the batch, and for
every number between, the small ones as often as the large ones by their logarithm: as the degrees of a rateless code.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.planting.first_layer import PlantedLayer
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.lone_samples import SLACK
from fedspill.planting.readings import quotients, rows_alone
from fedspill.training import Tensors

TrapKind: TypeAlias = Literal["published", "calibrated", "biases"]


def trap_rows(rows: int, columns: int, factor: float, sigma: float, rng: torch.Generator) -> Tensor:
    """(rows, columns): for each row one half of the columns, drawn at random, negative, the other `factor` as large."""
    half = columns // 2
    weight = torch.zeros(rows, columns)
    for row in range(rows):
        order = torch.randperm(columns, generator=rng)
        sizes = (sigma * torch.randn(half, generator=rng)).abs()
        weight[row, order[:half]] = -sizes
        weight[row, order[half : 2 * half]] = factor * sizes
    return weight


@torch.no_grad()
def plant_traps(
    layer: PlantedLayer,
    state: Tensors,
    known: Tensor,
    samples: int,
    kind: TrapKind,
    rng: torch.Generator,
    *,
    factor: float = 0.95,
    sigma: float = 0.5,
    most: float = 1.0,
) -> Tensors:
    """The state with traps for batches of `samples`; `known` (n, features) are features of inputs at hand.

    "published": rows as published, without biases. "calibrated": those rows as large as the ones that they replace, and
    biases by the inputs at hand. "biases": the rows that are there, with such biases. By these the first row fires for
    one sample of a batch, the last for `most`.
    """
    planted = {name: tensor.clone() for name, tensor in state.items()}
    weight, bias = planted[layer.weight], planted[layer.bias]
    if kind != "biases":
        usual = weight.norm(dim=1).median()
        rows = trap_rows(weight.shape[0], weight.shape[1], factor, sigma, rng).to(weight)
        weight.copy_(rows if kind == "published" else rows * usual / rows.norm(dim=1, keepdim=True))
        bias.zero_()
    if kind != "published":
        heights = (known[:20_000].to(weight) @ weight.T).sort(0, descending=True).values
        fires = max(most, 1.0) ** torch.linspace(0, 1, len(bias))
        above = (fires / max(samples, 2) * len(heights)).round().long().clamp(1, max(len(heights) - 1, 1))
        below, columns = above.clamp(max=len(heights) - 1), torch.arange(len(bias))
        bias.copy_(-(heights[above - 1, columns] + heights[below, columns]) / 2)
    return planted


def fitted_factor(known: Tensor, samples: int, rng: torch.Generator) -> float:
    """The factor at which half of the published rows fire for less than one of `samples` inputs like `known`.

    The authors fit it to the data; they leave open how.
    """
    low, high = 0.0, 1.0
    rows = trap_rows(100, known.shape[1], 1.0, 1.0, rng).to(known)
    pushes, pulls = known @ rows.clamp(min=0).T, known @ rows.clamp(max=0).T
    for _ in range(12):
        middle = (low + high) / 2
        often = float((middle * pushes + pulls > 0).double().mean(0).median())
        low, high = (low, middle) if often > 1 / samples else (middle, high)
    return (low + high) / 2


def distinct_quotients(
    weight_gradient: Tensor, bias_gradient: Tensor, packing: InputPacking, most: int, near: float = 0.01
) -> Tensor:
    """(at most `most`, *shape) what rows hold: possible inputs, each once, those first that most rows agree on.

    A row that fired once holds a sample, and several rows may hold the same. The authors leave open how an attacker
    picks; nothing here uses more than the gradient.
    """
    held, filled = quotients(rows_alone(len(bias_gradient)), weight_gradient, bias_gradient)
    x = packing.unpack(held[filled])
    span = packing.high - packing.low
    flat = x.flatten(1)
    possible = ((flat > packing.low - SLACK * span) & (flat < packing.high + SLACK * span)).all(1)
    x, flat = x[possible].clamp(packing.low, packing.high), flat[possible]
    alike = torch.cdist(flat, flat) < near * span * flat.shape[1] ** 0.5
    chosen: list[int] = []
    left = torch.ones(len(x), dtype=torch.bool)
    while bool(left.any()) and len(chosen) < most:
        index = int((alike & left).sum(1).where(left, torch.tensor(-1)).argmax())
        chosen.append(index)
        left &= ~alike[index]
        left[index] = False
    return x[chosen]
