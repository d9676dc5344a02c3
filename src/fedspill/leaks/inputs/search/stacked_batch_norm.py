"""Batch norm written out: right under vmap, and a few kernels instead of dozens when it is differentiated twice.

By the batch's own statistics torch's own (2.13) takes them, under vmap, for constants in the gradient of its scale:
gradients are right, but their derivatives by the inputs, which every search follows, are not. By running statistics it
is right, but its second derivative is that of the general case, while all it does is to multiply and to add.
"""

from __future__ import annotations

import copy
from typing import final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_explicit_batch_norm(model: nn.Module) -> nn.Module:
    """The model, or where it has batch norms a copy of the same parameters in which they are written out.

    A layer in training mode that keeps statistics stays as it is, since what it does changes them.
    """
    named = [(name, m, _explicit(m)) for name, m in model.named_modules() if isinstance(m, _BatchNorm)]
    changed = [(name, made) for name, _, made in named if made is not None]
    if not changed:
        return model
    if changed[0][0] == "":
        return changed[0][1]
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    written = copy.deepcopy(model, shared)
    for name, made in changed:
        parent, _, leaf = name.rpartition(".")
        setattr(written.get_submodule(parent), leaf, made)
    return written


def _explicit(layer: _BatchNorm) -> nn.Module | None:
    if layer.running_mean is None:
        return ExplicitBatchNorm(layer)
    return None if layer.training else FixedBatchNorm(layer)


@final
class FixedBatchNorm(nn.Module):
    """Normalises every channel of x (B, channels, ...) by its running statistics: one factor and one summand."""

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.weight, self.bias = layer.weight, layer.bias
        factor = (layer.running_var + layer.eps).rsqrt()
        self.register_buffer("factor", factor)
        self.register_buffer("summand", -layer.running_mean * factor)

    def forward(self, x: Tensor) -> Tensor:
        each = (-1, *(1 for _ in range(x.ndim - 2)))
        # Constants first: what is multiplied by them needs no gradient of its own. Not by torch.addcmul, whose
        # derivatives multiply once more, by its own factor of one.
        shown = x * self.get_buffer("factor").view(each) + self.get_buffer("summand").view(each)
        if self.weight is None:
            return shown
        return shown * self.weight.view(each) + self.bias.view(each)


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
