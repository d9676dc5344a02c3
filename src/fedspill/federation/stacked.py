"""Stacked training: all clients of a round as one model with a leading client dimension.

A client's loss depends on its own slice only, so the gradient of the summed losses is every client's own gradient, and
the optimizers here work element by element. For small models this removes nearly all overhead; for large ones memory
traffic decides and the plain loop wins (benchmarks/federation.py shows where).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedspill.data.base import Examples
from fedspill.federation.local import LocalTraining, Tensors

MOST_PARAMETERS = 120_000


def is_stackable(model: nn.Module, example: Tensor, training: LocalTraining) -> bool:
    """Small, deterministic, without buffers or convolutions, and accepted by vmap."""
    layers = [module for module in model.modules() if not list(module.children())]
    if training.algorithm != "fedavg" or sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
        return False
    if list(model.buffers()) or any(isinstance(layer, _UNSUITED) for layer in layers):
        return False
    try:
        twice = {name: torch.stack([p.detach(), p.detach()]) for name, p in model.named_parameters()}
        vmap(lambda state: functional_call(model, state, (example[:1],)))(twice)
    except (RuntimeError, ValueError):  # control flow on values, or an operator without a batching rule
        return False
    return True


_UNSUITED = (nn.modules.dropout._DropoutNd, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.RNNBase)


def train_stacked(
    model: nn.Module,
    start: Tensors,
    clients: Sequence[Examples],
    training: LocalTraining,
    rngs: Sequence[torch.Generator],
) -> list[Tensors]:
    """The change of every parameter for each client; the clients must have equally many steps."""
    batches = [training.batches(len(examples), rng) for examples, rng in zip(clients, rngs, strict=True)]
    model.train()
    stacked = {name: tensor.expand(len(clients), *tensor.shape).clone() for name, tensor in start.items()}
    optimizer = training.optimizer_for(stacked.values())
    gradients = vmap(grad(lambda state, x, y, weight: _loss(functional_call(model, state, (x,)), y, weight)))
    for step in zip(*batches, strict=True):
        for name, gradient in gradients(stacked, *_step(clients, step)).items():
            stacked[name].grad = gradient
        optimizer.step()
    torch._foreach_sub_(list(stacked.values()), [start[name] for name in stacked])
    return [dict(zip(stacked, rows, strict=True)) for rows in zip(*map(torch.unbind, stacked.values()), strict=True)]


def _step(clients: Sequence[Examples], step: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (clients, b, ...), labels and weights (clients, b); shorter batches are padded with weight 0."""
    lengths = torch.tensor([len(indices) for indices in step])
    longest = int(lengths.max())
    padded = nn.utils.rnn.pad_sequence(list(step), batch_first=True)
    x = torch.stack([examples.x[indices] for examples, indices in zip(clients, padded, strict=True)])
    y = torch.stack([examples.y[indices] for examples, indices in zip(clients, padded, strict=True)])
    weight = (torch.arange(longest)[None] < lengths[:, None]).to(x.dtype) / lengths[:, None]
    return x, y, weight.to(x.device)


def _loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum of one client's cross-entropies."""
    if logits.shape[1] == 1:
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits.squeeze(1), labels.to(logits.dtype), reduction="none"
        )
    else:
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    return losses @ weight
