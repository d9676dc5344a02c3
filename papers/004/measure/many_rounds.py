"""One FedAvg round for many models at once: what `Horizontal.round` sums up, for every planted model of an experiment.

The clients, their batches and their optimizers are those of `fedspill.federation`; models and clients are two leading
dimensions of one computation, which a GPU runs hundreds of times faster than one federation after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import UsageError
from fedspill.federation.trainers import training_rng
from fedspill.planting.dense_network import DenseNetwork
from fedspill.training import LocalTraining, Tensors


@torch.no_grad()
def aggregates(
    dense: DenseNetwork, states: Tensors, clients: Sequence[Examples], training: LocalTraining, seed: int, number: int
) -> Tensors:
    """(models, ...) the mean update of the clients, weighted by their examples, from each of the stacked states."""
    plain = training.algorithm == "fedavg" and not training.weight_decay and not training.momentum
    if not plain or training.optimizer not in ("sgd", "adam"):
        raise UsageError("Many rounds at once are FedAvg with plain SGD or Adam.")
    device = next(iter(states.values())).device
    steps = [training.batches(len(own), training_rng(seed, number, index)) for index, own in enumerate(clients)]
    order = sorted(range(len(clients)), key=lambda index: -len(steps[index]))
    names = [name for layer in range(len(dense.layers)) for name in (dense.weight(layer), dense.bias(layer))]
    own = {name: states[name][:, None].expand(-1, len(clients), *states[name].shape[1:]).clone() for name in names}
    adam = training.optimizer == "adam"
    moments = {name: (torch.zeros_like(t), torch.zeros_like(t)) for name, t in own.items() if adam}
    x = torch.cat([clients[index].x.flatten(1) for index in order]).to(device)
    y = torch.cat([clients[index].y for index in order]).to(device)
    rows, weights, active = (
        part.to(device) for part in _batches([steps[i] for i in order], [len(clients[i]) for i in order])
    )
    for step, many in enumerate(active.tolist()):
        part = {name: tensor[:, :many] for name, tensor in own.items()}
        index = rows[step, :many]
        for name, gradient in _gradients(dense, part, x[index], y[index], weights[step, :many]).items():
            if not adam:
                part[name].sub_(gradient, alpha=training.lr)
                continue
            first, second = (moment[:, :many] for moment in moments[name])
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (second / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
            part[name].addcdiv_(first, root, value=-training.lr / (1 - 0.9 ** (step + 1)))
    sizes = torch.tensor([float(training.schedule(len(clients[index])).samples) for index in order], device=device)
    shares = sizes / sizes.sum()
    return {name: torch.einsum("c,rc...->r...", shares, own[name] - states[name][:, None]) for name in names}


def _batches(steps: Sequence[Sequence[Tensor]], sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and weights (steps, clients, b) of all batches, padded with weight 0; how many clients (steps,) are left.

    Clients come with the most steps first, so that those that still train are always the first ones.
    """
    longest = max(len(batch) for of_client in steps for batch in of_client)
    rows = torch.zeros(len(steps[0]), len(steps), longest, dtype=torch.int64)
    weights = torch.zeros(len(steps[0]), len(steps), longest)
    start = 0
    for place, (of_client, size) in enumerate(zip(steps, sizes, strict=True)):
        for step, batch in enumerate(of_client):
            rows[step, place, : len(batch)] = batch + start
            weights[step, place, : len(batch)] = 1 / len(batch)
        start += size
    return rows, weights, (weights.sum(2) > 0).sum(1)


def _gradients(dense: DenseNetwork, state: Tensors, x: Tensor, y: Tensor, weight: Tensor) -> Tensors:
    """The gradient of each model's (r) and client's (c) loss; state (r, c, ...), x (c, b, columns), weight (c, b)."""
    inputs, slopes, h = [x], [], x
    for layer in range(dense.hidden):
        z = torch.matmul(h, state[dense.weight(layer)].mT) + state[dense.bias(layer)][:, :, None]
        h = dense.activation(z)
        slopes.append(dense.activation.slope(z))
        inputs.append(h)
    logits = torch.matmul(h, state[dense.weight(dense.hidden)].mT) + state[dense.bias(dense.hidden)][:, :, None]
    if logits.shape[-1] == 1:
        back = torch.sigmoid(logits) - y[..., None]
    else:
        back = torch.softmax(logits, -1) - nn.functional.one_hot(y, logits.shape[-1])
    back = back * weight[..., None]
    found: Tensors = {}
    for layer in range(dense.hidden, -1, -1):
        found[dense.weight(layer)] = torch.matmul(back.mT, inputs[layer])
        found[dense.bias(layer)] = back.sum(2)
        if layer:
            back = torch.matmul(back, state[dense.weight(layer)]) * slopes[layer - 1]
    return found
