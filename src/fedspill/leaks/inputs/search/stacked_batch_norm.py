"""Batch norm written out: right under vmap, and a few kernels instead of dozens when it is differentiated twice.

By the batch's own statistics torch's own (2.13) takes them, under vmap, for constants in the gradient of its scale:
gradients are right, but their derivatives by the inputs, which every search follows, are not. By running statistics it
is right, but its second derivative is that of the general case, while all it does is to multiply and to add.
"""

from __future__ import annotations

import copy
from typing import Any, final

import torch
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
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        factor = (layer.running_var + layer.eps).rsqrt()
        self.register_buffer("mean", layer.running_mean)
        self.register_buffer("variance", layer.running_var)
        self.register_buffer("factor", factor)
        self.register_buffer("summand", -layer.running_mean * factor)

    def forward(self, x: Tensor) -> Tensor:
        factor, summand = self.get_buffer("factor"), self.get_buffer("summand")
        if x.is_cuda and self.weight is not None:
            known = self.get_buffer("mean"), self.get_buffer("variance"), factor, summand
            return few_kernels(x, self.weight, self.bias, *known, self.eps)
        # Constants first: what is multiplied by them needs no gradient of its own. Not by torch.addcmul, whose
        # derivatives multiply once more, by its own factor of one.
        shown = x * _each(factor, x) + _each(summand, x)
        if self.weight is None:
            return shown
        return shown * _each(self.weight, x) + _each(self.bias, x)


def few_kernels(*inputs: Any) -> Tensor:
    """A batch norm by running statistics, with first and second derivatives by as few kernels as torch has for them.

    Takes x, weight, bias, mean, variance, factor, summand and what is added to the variance.
    """
    made: Tensor = _FewKernels.apply(*inputs)  # type: ignore[no-untyped-call]
    return made


@final
class _FewKernels(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        factor: Tensor,
        summand: Tensor,
        eps: float,
    ) -> Tensor:
        return torch.addcmul(_each(torch.addcmul(bias, weight, summand), x), x, _each(weight * factor, x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _bias, *known, ctx.eps = inputs
        ctx.save_for_backward(x, weight, *known)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        found = _FewKernelsBack.apply(above, *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
        return *found, *(None for _ in range(5))


@final
class _FewKernelsBack(torch.autograd.Function):
    """The gradients of x, weight and bias, by that of what came out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        above: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        variance: Tensor,
        factor: Tensor,
        summand: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _sums_and_product(above, x, weight, mean, variance, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_weight: Tensor, of_bias: Tensor) -> tuple[Tensor | None, ...]:
        above, x, weight, mean, variance, factor, summand = ctx.saved_tensors
        slope = _each(of_weight * factor, x)
        onward = torch.addcmul(_each(torch.addcmul(of_bias, of_weight, summand), x), x, slope)
        # Of x came above * weight * factor, which is linear in above and in weight.
        through, product, total = _sums_and_product(of_x, above, weight, mean, variance, ctx.eps)
        to_weight = torch.addcmul(product, total, summand, value=-1)
        return onward + through, above * slope, to_weight, *(None for _ in range(5))


def _sums_and_product(
    above: Tensor, x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """above * weight * factor; sums over a channel of above * (x * factor + summand), and of above. One kernel."""
    # Convolutions by products leave channels first in memory: as one sample of long channels they come back like that.
    swapped = x.transpose(0, 1).is_contiguous()
    given = [t.transpose(0, 1).reshape(1, len(weight), -1) for t in (above, x)] if swapped else [above, x]
    product, to_weight, to_bias = torch.ops.aten.native_batch_norm_backward(
        *given, weight, mean, variance, None, None, False, eps, [True, True, True]
    )
    if swapped:
        product = product.view(x.transpose(0, 1).shape).transpose(0, 1)
    return product, to_weight, to_bias


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


def _each(values: Tensor, x: Tensor) -> Tensor:
    """Values (channels,) so that they go with x (B, channels, ...)."""
    return values.view(-1, *(1 for _ in range(x.ndim - 2)))
