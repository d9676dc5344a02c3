"""Copies of a network with batch norm: as a client's training step runs it, and with the statistics that it sends."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.search.batch_norm import BatchNorms, tracking_batch_norms
from fedspill.leaks.inputs.search.stacked_batch_norm import with_explicit_batch_norm


def by_batch(model: nn.Module) -> nn.Module:
    """A copy whose batch norms normalise by the statistics of whatever batch comes, as in a training step."""
    return with_explicit_batch_norm(in_training(model))


def in_training(model: nn.Module) -> nn.Module:
    """The same with torch's own batch norms, whose second derivatives are wrong under vmap."""
    return BatchNorms(frozenset(tracking_batch_norms(model))).as_client_ran(model)


@torch.no_grad()
def with_statistics_of(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy, in evaluation mode, whose running statistics are those of a training step on x.

    A client that trains sends them: they are what its step did to the buffers.
    """
    told, twin = copy.deepcopy(model).eval(), by_batch(model)
    names = tracking_batch_norms(model)
    seen: dict[str, Tensor] = {}
    handles = [
        twin.get_submodule(name).register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0]}))
        for name in names
    ]
    twin(x)
    for handle in handles:
        handle.remove()
    for name in names:
        layer, features = told.get_submodule(name), seen[name].transpose(0, 1).flatten(1)
        layer.running_mean.copy_(features.mean(1))
        layer.running_var.copy_(features.var(1, unbiased=False))
    return told
