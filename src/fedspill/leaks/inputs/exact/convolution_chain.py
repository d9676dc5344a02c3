"""One sample through a chain of convolutions and linear layers, layer by layer, each by one linear solve.

After R-GAP (Zhu and Blaschko 2021), as weighted least squares. For batch size 1 the first linear layer gives its input
in closed form, a = (gb^T gW) / |gb|^2. Below it every convolution obeys two systems that are linear in its input u:

    conv(u; K) = inverse activation(a) - b,         sum over places of delta(place) patch(u, place)^T = grad K,

where delta = (what the layer above sends back) times the activation's slope. No label is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.deconvolve import convolution_input
from fedspill.leaks.inputs.exact.leading_layers import module_chain

MOST_UNKNOWNS = 4_096  # values of a layer's input; a solve that does not converge is dense

# An activation's output to its input, the slope there, and where the input is known at all.
InvertedActivation: TypeAlias = tuple[Tensor, Tensor, Tensor]


def single_sample(model: nn.Module, gradients: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """The sample (*shape) behind the gradient of a batch of one, in float64; CannotRecover where there is none."""
    chain = module_chain(model)
    linear, known, sent = linear_input(chain, gradients)
    shapes = _input_shapes([module for _, module in chain[:linear]], shape)
    above: InvertedActivation | None = None
    for index in reversed(range(linear)):
        name, module = chain[index]
        if isinstance(module, nn.Flatten | nn.Identity | nn.Dropout):
            continue
        if isinstance(module, nn.Conv2d):
            below = shapes[index]
            z, slope, where = above or _as_is(known)
            delta = sent.reshape(slope.shape) * slope
            known = convolution_input(module, z, slope, where, delta, gradients[f"{name}.weight"].double(), below)
            sent = _send_back(module, below, delta.reshape(1, *shapes[index + 1]))
            above = None
        else:
            above = invert_activation(module, known)
    return known.reshape(shape)


def linear_input(chain: list[tuple[str, nn.Module]], gradients: Mapping[str, Tensor]) -> tuple[int, Tensor, Tensor]:
    """Where the first linear layer is, what it was fed, and what it sends back, both (features,)."""
    linear = next((index for index, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)), None)
    if linear is None:
        raise CannotRecover("the network has no linear layer to start from")
    name, top = chain[linear]
    assert isinstance(top, nn.Linear)
    if top.bias is None:
        raise CannotRecover("the first linear layer has no bias, whose gradient would give its input")
    if f"{name}.weight" not in gradients or f"{name}.bias" not in gradients:
        raise CannotRecover(f"the first linear layer, {name!r}, is frozen: no gradient of it was sent")
    weight, bias = gradients[f"{name}.weight"].double(), gradients[f"{name}.bias"].double()
    if not float(bias.norm()) > 0:
        raise CannotRecover(f"the bias gradient of {name!r} is zero")
    return linear, (bias @ weight) / (bias @ bias), top.weight.detach().double().T @ bias


def _send_back(layer: nn.Conv2d, shape: tuple[int, ...], delta: Tensor) -> Tensor:
    """(*shape) the derivative by the input of a convolution, from that by its output."""
    kernel = layer.weight.detach().double()
    with torch.enable_grad():
        x = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
        out = functional.conv2d(x, kernel, None, layer.stride, layer.padding)
        (sent,) = torch.autograd.grad(out, [x], delta)
    return sent[0]


def _as_is(known: Tensor) -> InvertedActivation:
    return known, torch.ones_like(known), torch.ones_like(known, dtype=torch.bool)


def _input_shapes(modules: list[nn.Module], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What each module is fed, and what the last one gives; CannotRecover names one that cannot be inverted."""
    shapes, x = [tuple(shape)], torch.zeros(1, *shape, dtype=torch.float64)
    for module in modules:
        if isinstance(module, nn.Conv2d):
            plain = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
            if not plain or isinstance(module.padding, str) or x.ndim != 4:
                raise CannotRecover("a convolution with groups, dilation or padding other than zeros is not solved for")
            if x[0].numel() > MOST_UNKNOWNS:
                raise CannotRecover(
                    f"a layer has {x[0].numel():,} inputs, more than the {MOST_UNKNOWNS:,} that are solved for"
                )
            kernel = module.weight.detach().double()
            x = functional.conv2d(x, kernel, None, module.stride, module.padding)
        elif isinstance(module, nn.Flatten):
            x = x.flatten(1)
        elif not isinstance(module, nn.Identity | nn.Dropout | nn.Sigmoid | nn.Tanh | nn.ReLU | nn.LeakyReLU):
            raise CannotRecover(f"{type(module).__name__} cannot be inverted")
        shapes.append(tuple(x.shape[1:]))
    return shapes


def invert_activation(module: nn.Module, a: Tensor, doubt: float = 0.0) -> InvertedActivation:
    """Values before the activation, its slope there, and where both are known; a value up to `doubt` may be noise."""
    everywhere = torch.ones_like(a, dtype=torch.bool)
    if isinstance(module, nn.Sigmoid):
        a = a.clamp(1e-9, 1 - 1e-9)
        return torch.logit(a), a * (1 - a), everywhere
    if isinstance(module, nn.Tanh):
        a = a.clamp(-1 + 1e-9, 1 - 1e-9)
        return torch.atanh(a), 1 - a * a, everywhere
    if isinstance(module, nn.LeakyReLU):
        slope = torch.where(a > 0, 1.0, module.negative_slope).to(a)
        return a / slope, slope, everywhere
    if isinstance(module, nn.ReLU):
        on = a > max(1e-6 * float(a.abs().max()), doubt)
        return a, on.to(a), on
    raise CannotRecover(f"{type(module).__name__} cannot be inverted")
