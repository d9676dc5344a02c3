"""Reads planted neurons through known noise, by comparing a round's sum with what the target alone would have sent.

Noise of equal size lies on every coordinate, and a neuron that only its target reaches moves in one direction that the
server can compute: by its bias, its own weights and above all the weights that read it, where the target's activation
stands. The inner product with that direction is the most that Gaussian noise leaves (a matched filter); clipping makes
it shorter and turns nothing. The bias alone, which is read where there is no noise, is a small part of it.

At the target, the units that measure the distance to it are at the kink of their activation. Rounding decides whether
they fire; if they do, most of the gradient goes there and clipping leaves little for the rest. So these units get a
dead zone around the target, in which they surely do not fire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedspill.messages import Message
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.planting.closed_form import neurons_of_target
from fedspill.planting.dense_network import DenseNetwork, residuals
from fedspill.planting.targets import Targets
from fedspill.trace import View

_DEAD_ZONE = 0.1  # of the mean distance, along one direction, of the nearest shadow record


def reads_through_noise(view: View, dense: DenseNetwork) -> bool:
    """Whether the adversary knows of noise on what it reads, in a network whose neurons fire for one record alone."""
    wire = KnownDefenses.known_to(view) if dense.hidden == 2 else None
    return wire is not None and wire.noisy


@torch.no_grad()
def with_dead_zone(
    dense: DenseNetwork, planted: Mapping[str, Tensor], rows: int, together: int, shadow: Tensor
) -> dict[str, Tensor]:
    """The state with measuring units that are surely silent at their target; `rows` neurons for each of `together`."""
    state = {name: tensor.clone() for name, tensor in planted.items()}
    w1, b1, w2 = (state[name] for name in (dense.weight(0), dense.bias(0), dense.weight(1)))
    for place in range(together):
        row = int(neurons_of_target(len(w2), rows, place, together)[0])  # all neurons of a target read the same units
        # Units that read the attribute have one weight, those that measure have many.
        measuring = ((w2[row] != 0) & ((w1 != 0).sum(1) > 1)).nonzero().flatten()
        if len(measuring):
            far = dense.activation(shadow.to(w1) @ w1[measuring].T + b1[measuring]).mean(1)  # (shadow,)
            b1[measuring] -= _DEAD_ZONE * far.min()
    return state


def matched_signals(
    view: View, dense: DenseNetwork, targets: Targets, records: Sequence[Tensor], indices: Sequence[int], at_once: int
) -> Tensor:
    """(indices, rows): how much of what each of a target's neurons would send for it is in the sum of its round.

    records: for each neuron of a target, the targets (targets, columns) as that neuron takes them to be.
    """
    sums = {message.round: message for message in view.get("aggregate")}
    sent = {message.round: message.tensors for message in view.get("model")}
    rows = len(records)
    found = torch.zeros(len(indices), rows, dtype=torch.float64)
    for number, index in enumerate(indices):
        origin = targets.origin(index, at_once)
        model, message = sent.get(origin.round), sums[origin.round]
        if model is None:
            continue
        together = len(targets.group(origin.round, at_once))
        planted = neurons_of_target(len(model[dense.bias(dense.hidden - 1)]), rows, index % at_once, together)
        for place, row in enumerate(planted.tolist()):
            expected = neuron_gradient(dense, model, records[place][index], targets.y[index], row)
            size = max(float(expected.norm()), 1e-300)
            found[number, place] = float(_observed(dense, message, row) @ expected) / size
    return found


@torch.no_grad()
def neuron_gradient(
    dense: DenseNetwork, state: Mapping[str, Tensor], record: Tensor, label: Tensor, row: int
) -> Tensor:
    """(inputs + 1 + logits,) what one record (columns,) sends to a neuron: weights, bias, and those that read it."""
    last = dense.hidden
    s = dense.pre_activations(state, record[None], last - 1)
    below = dense.activation(dense.pre_activations(state, record[None], last - 2))[0]
    weight, bias = state[dense.weight(last)], state[dense.bias(last)]
    wrong = residuals(dense.activation(s) @ weight.T + bias, label[None])[0]
    back = (wrong @ weight[:, row]) * dense.activation.slope(s)[0, row]
    return torch.cat([back * below, back[None], wrong * dense.activation(s)[0, row]]).double()


def _observed(dense: DenseNetwork, message: Message, row: int) -> Tensor:
    """(inputs + 1 + logits,) the same coordinates of a sum, as a gradient."""
    last = dense.hidden
    weight, bias, reading = (
        message.tensors[name] for name in (dense.weight(last - 1), dense.bias(last - 1), dense.weight(last))
    )
    sign = 1 if message.info.get("of") == "gradient" else -1
    return sign * torch.cat([weight[row], bias[row : row + 1], reading[:, row]]).double()
