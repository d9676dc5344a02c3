"""Batch norm by the batch's own statistics, written out, so that stacked restarts can be differentiated twice.

Under vmap torch's own (2.13) takes the batch's statistics for constants in the gradient of its scale: gradients are
right, but their derivatives by the inputs, which every search follows, are not.
"""

from __future__ import annotations

import copy
from typing import final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_explicit_batch_norm(model: nn.Module) -> nn.Module:
    """The model, or a copy with the same parameter names where it has batch norms that keep no statistics."""
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is None]
    if not named:
        return model
    if named[0][0] == "":
        return ExplicitBatchNorm(named[0][1])
    stacked = copy.deepcopy(model)
    for name, layer in named:
        parent, _, leaf = name.rpartition(".")
        setattr(stacked.get_submodule(parent), leaf, ExplicitBatchNorm(layer))
    return stacked


@final
class ExplicitBatchNorm(nn.Module):
    """Normalises every channel of x (B, channels, ...) by its mean and variance over the batch."""

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        others = [0, *range(2, x.ndim)]
        apart = x - x.mean(others, keepdim=True)
        shown = apart * (apart.square().mean(others, keepdim=True) + self.eps).rsqrt()
        each = (-1, *(1 for _ in others[1:]))
        if self.weight is not None:
            shown = shown * self.weight.view(each)
        return shown if self.bias is None else shown + self.bias.view(each)
