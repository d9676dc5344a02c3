"""Reads planted neurons in what secure aggregation lets a server see: the sum of a round, and nothing of one client."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.messages import Message
from fedspill.planting.closed_form import neurons_of_target
from fedspill.planting.dense_network import DenseNetwork
from fedspill.planting.targets import Targets
from fedspill.trace import Origin, View

_FAINTEST = 1e-6  # of the strongest signal; what is weaker is rounding, from rounds without the target


def read_neurons(
    view: View, dense: DenseNetwork, targets: Targets, rows: int, at_once: int
) -> tuple[list[int], Tensor]:
    """The targets whose round was seen, and (targets, rows) the gradient at the biases of their neurons.

    The bias of a neuron moves by the sum of the gradients at it, and a neuron that only its target reaches has that of
    the target alone. An update is minus the learning rate times the gradient, so its sign is turned.
    """
    name = dense.bias(dense.hidden - 1)
    found: dict[int, Tensor] = {}
    sums = {message.round: message for message in view.get("aggregate")}
    for index in range(len(targets)):
        origin = targets.origin(index, at_once)
        bias = _bias(sums.get(origin.round), name)
        if bias is None:
            continue
        together = len(targets.group(origin.round, at_once))
        mine = neurons_of_target(len(bias), rows, index % at_once, together)
        if bool(torch.isfinite(bias[mine]).all()):
            found[index] = bias[mine]
    if not found:
        raise NotApplicable("No sum of a planted round was seen that has the planted neurons' biases.")
    return list(found), torch.stack(list(found.values()))


def read_likeness(view: View, dense: DenseNetwork, targets: Targets, indices: Sequence[int], at_once: int) -> Tensor:
    """(indices,) in (0, 1], 1 where a first-layer neuron was moved by its target alone, as far as known columns tell.

    A neuron's weights move by the sum of gradient times input and its bias by the sum of gradients, so the quotient is
    the mean of the inputs that reached it.
    """
    sums, known = {message.round: message for message in view.get("aggregate")}, targets.known() > 0
    found = []
    for index in indices:
        origin = targets.origin(index, at_once)
        weight, bias = (sums[origin.round].tensors.get(name) for name in (dense.weight(0), dense.bias(0)))
        record = targets.x.flatten(1)[index].double()
        if weight is None or bias is None or weight.shape != (len(bias), len(record)):
            found.append(0.0)
            continue
        row = int(neurons_of_target(len(bias), 1, index % at_once, len(targets.group(origin.round, at_once)))[0])
        mean = weight[row].double() / bias[row].double()
        distance = float((mean - record)[known].norm() / record[known].norm().clamp(min=1e-12))
        found.append(1 / (1 + distance) if math.isfinite(distance) else 0.0)
    return torch.tensor(found, dtype=torch.float64)


def _bias(message: Message | None, name: str) -> Tensor | None:
    """The gradient (units,) at that layer's biases, or None where the sum does not have it."""
    bias = None if message is None else message.tensors.get(name)
    if message is None or bias is None or bias.ndim != 1 or not bias.is_floating_point():
        return None
    return bias.double() * (1 if message.info.get("of") == "gradient" else -1)


def origins(targets: Targets, indices: Sequence[int], at_once: int) -> list[Origin]:
    return [targets.origin(index, at_once) for index in indices]


def contrast(signal: Tensor) -> Tensor:
    """(targets,) in [-1, 1], from the gradients (targets, 2) at the neurons of value 0 and 1: whose share is larger.

    How strongly a record shows depends on its client's size, its batch and its optimizer, which differ from target to
    target. Both neurons depend on them alike, so that their quotient does not. Where several records equal the target
    in the known columns, it is the share of those with value 1, which is all that can be known. The target moves its
    neuron in one direction only, so a move in the other direction is no evidence.
    """
    pushed = signal.clamp(min=0)
    total = pushed.sum(1)
    floor = torch.finfo(total.dtype).tiny
    return (pushed[:, 1] - pushed[:, 0]) / (total + _FAINTEST * total.max()).clamp(min=floor)


def into_unit_interval(signal: Tensor) -> Tensor:
    """Maps finite numbers into (-1, 1) in the same order, so that scores of several federations can be pooled."""
    return 2 / math.pi * torch.atan(signal / signal.abs().median().clamp(min=1e-300))
