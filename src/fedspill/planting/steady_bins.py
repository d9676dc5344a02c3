"""Bins that stay where they are while a client makes many local steps (FedAvg).

Every step moves the rows, and the columns behind them, so that after a few a bin is no longer where it was and
neighbours no longer get the same. With a second hidden layer the server can choose how much: the weights of that layer
are all one number and those of the layer behind it one column, and only their product decides what a row gets. It is
made so small that all samples of a client together move a row by much less than a bin is wide, and as large as float32
needs to carry what one sample adds. Nothing is vouched for after several steps (agreement.py reads them).
"""

from __future__ import annotations

import torch
from torch import nn

from fedspill.planting.bins import generic_column
from fedspill.planting.first_layer import PlantedLayer, parts_of
from fedspill.training import Tensors

# What a sample adds to a row by one pass of a client of one batch, relative to the row's gain. Of 1e-6 to 1e-4 it read
# the most on MNIST (256 rows, 32 images in batches of 8, 5 epochs, learning rates 0.01 and 0.1, seeds 69000 and 69001).
MOVE = 1e-5


def third_layer_of(model: nn.Module, layer: PlantedLayer) -> str | None:
    """The linear layer behind the next one, where both have biases and a ReLU lies between; None where not so."""
    leaves = [(name, module) for name, module in parts_of(model) if not isinstance(module, nn.Dropout | nn.Identity)]
    place = next(place for place, (name, _) in enumerate(leaves) if name == layer.second)
    behind = leaves[place : place + 3]
    fits = len(behind) == 3 and isinstance(behind[1][1], nn.ReLU) and isinstance(behind[2][1], nn.Linear)
    if not fits or any(module.bias is None for _, module in behind[::2]) or len(leaves) > place + 3:
        return None
    return behind[2][0]


@torch.no_grad()
def hold_still(
    planted: Tensors,
    layer: PlantedLayer,
    third: str,
    gain: float,
    rng: torch.Generator,
    *,
    lr: float,
    passes: float,
) -> None:
    """Changes the two layers behind planted bins for clients in which a sample counts `passes` times: epochs divided by
    samples a batch.
    """
    second, head = planted[layer.second_weight], planted[f"{third}.weight"]
    units, width = second.shape
    column = generic_column(len(head), rng).to(head)
    size = float(column.abs().mean())
    moved = MOVE * gain / passes  # in all, by one sample, over its values
    # Split between the two layers so that neither moves by a larger share of itself than the other.
    inner = (moved / (units * lr) / (width * size) ** 0.5) ** 0.5
    second.fill_(inner)
    planted[f"{layer.second}.bias"].fill_(4 * moved / (inner * units))  # above zero: no unit is ever silent
    head.copy_((column * moved / (lr * inner * units * size))[:, None].expand_as(head))
    planted[f"{third}.bias"].zero_()
