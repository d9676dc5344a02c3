"""Plants of an attacker who knows the guards: a second layer left as it was, and honest models moved by small steps."""

from __future__ import annotations

import torch

from fedspill.errors import NotApplicable
from fedspill.planting.closed_form import NeuronDesign
from fedspill.planting.dense_network import DenseNetwork
from fedspill.planting.targets import Targets
from fedspill.training import Tensors


@torch.no_grad()
def plant_frozen_row(
    dense: DenseNetwork,
    state: Tensors,
    targets: Targets,
    index: int,
    shape: NeuronDesign,
    reach: float,
    rng: torch.Generator,
) -> Tensors:
    """The neuron's own weights stay bit for bit as they were; the whole first layer is rewritten around them.

    Units that the neuron reads with a negative weight measure the distance, the one with the largest positive weight
    reads the attribute, all others are silenced. For ELU with a negative alpha.
    """
    if not dense.activation.rises_both_ways or dense.hidden < 2:
        raise NotApplicable("A frozen row needs two hidden layers of ELU with a negative alpha.")
    planted = {name: tensor.clone() for name, tensor in state.items()}
    x, known, column = targets.x.flatten(1)[index], targets.known(), targets.secret_column()
    row = planted[dense.weight(1)][-1]
    measuring, reading = (row < 0).nonzero().flatten(), int(row.argmax())
    along = torch.randn(len(measuring), x.numel(), generator=rng).to(x) * known
    along = reach * along / along.norm(dim=1, keepdim=True)
    w1, b1 = planted[dense.weight(0)], planted[dense.bias(0)]
    w1.zero_()
    b1.zero_()
    w1[measuring], b1[measuring] = along, -(along @ x)
    w1[reading, column] = (shape.level + shape.offset) / float(row[reading])
    planted[dense.bias(1)][-1] = -shape.offset
    weight = planted[dense.weight(dense.hidden)]
    weight[0, -1] = weight[0, -1].abs() * (1 if int(targets.y[index]) == 0 else -1)
    return planted


def part_way(honest: Tensors, planted: Tensors, share: float) -> Tensors:
    """The honest model moved that share of the way to the planted one: a spike under a threshold, or a step of many."""
    return {name: tensor + share * (planted[name] - tensor) for name, tensor in honest.items()}
