"""The input of one convolution: two routes to the same least squares, weights that count, and what is not known."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.leaks.inputs.exact import deconvolve
from fedspill.leaks.inputs.exact.deconvolve import convolution_input

SHAPE = (3, 8, 8)


def layer(seed: int = 0, *, bias: bool = True) -> nn.Conv2d:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Conv2d(3, 12, 5, stride=2, padding=2, bias=bias).double()


def input_output_and_gradient(convolution: nn.Conv2d, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An input, the layer's output, a delta, and the kernel's gradient for it."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *SHAPE, generator=rng, dtype=torch.float64)
    z = convolution(x)
    delta = torch.randn(z.shape, generator=rng, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(z, [convolution.weight], delta)
    return x[0], z.detach()[0], delta[0], gradient


@pytest.mark.parametrize("iterations", [0, 700])
@pytest.mark.parametrize("bias", [True, False])
def test_both_routes_give_the_input_back(iterations: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without iterations of conjugate gradients the dense solve takes over."""
    monkeypatch.setattr(deconvolve, "MOST_ITERATIONS", iterations)
    convolution = layer(bias=bias)
    x, z, delta, gradient = input_output_and_gradient(convolution)
    found = convolution_input(
        convolution, z, torch.ones_like(z), torch.ones_like(z, dtype=torch.bool), delta, gradient, SHAPE
    )
    assert float((found - x).norm() / x.norm()) < 1e-5


def test_values_that_are_not_known_have_no_say_and_faint_ones_little() -> None:
    convolution = layer()
    x, z, delta, gradient = input_output_and_gradient(convolution)
    wrong = torch.zeros_like(z, dtype=torch.bool)
    wrong[:, 0, 0] = True
    spoilt = torch.where(wrong, z + 10, z)

    def error(slope: Tensor, where: Tensor) -> float:
        found = convolution_input(convolution, spoilt, slope, where, delta, gradient, SHAPE)
        return float((found - x).norm() / x.norm())

    everywhere, even = torch.ones_like(wrong), torch.ones_like(z)
    assert error(even, ~wrong) < 1e-5
    assert error(torch.where(wrong, 1e-5, even), everywhere) < 1e-2 < 0.1 < error(even, everywhere)


def test_an_output_alone_of_more_channels_than_pixels_is_enough() -> None:
    """A gradient of zero with a delta of zero says nothing."""
    convolution = layer()
    x = input_output_and_gradient(convolution)[0]
    z = functional.conv2d(x[None], convolution.weight, convolution.bias, convolution.stride, convolution.padding)[
        0
    ].detach()
    nothing = torch.zeros_like(z), torch.zeros_like(convolution.weight)
    found = convolution_input(convolution, z, torch.ones_like(z), torch.ones_like(z, dtype=torch.bool), *nothing, SHAPE)
    assert float((found - x).norm() / x.norm()) < 1e-3
