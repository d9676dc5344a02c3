"""Convolutions that pass an image on as it is, so that the first linear layer behind them reads pixels.

A kernel that is 1 at its centre copies a channel; a stride of 2 takes four kernels, one for each pixel that is skipped
otherwise. A server that sends every client kernels of its own puts each client's images into other channels: in the sum
of their gradients each client has columns of its own (LOKI, Zhao et al. 2024). One more channel, constant, gives each
client's own part of the bias gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.models.module_chain import kind_of
from fedspill.planting.first_layer import parts_of
from fedspill.planting.input_packing import InputPacking
from fedspill.training import Tensors

_PASSING = (nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True)
class Carried:
    """Which pixel of the input a channel carries: (channel, down, right), at the top left of each cell of the image."""

    channel: int
    down: int
    right: int


@dataclass(frozen=True)
class PassThrough:
    """The convolutions before the first linear layer, by name, and how many clients have room beside each other."""

    convolutions: tuple[str, ...]
    shape: tuple[int, ...]  # of an input
    cell: int  # side of the square of pixels that one place of the last feature map stands for
    side: tuple[int, int]  # of the last feature map
    channels: int  # of it
    blocks: int  # clients whose images and constants fit into its channels

    @property
    def block(self) -> int:
        """Channels that one client takes up, its constant one last."""
        return self.shape[0] * self.cell**2 + 1

    def carried(self) -> list[Carried]:
        """What a client's channels carry, in order."""
        colours, cell = range(self.shape[0]), range(self.cell)
        return [Carried(*place) for place in product(colours, cell, cell)]

    def packing(self, known: Tensor, block: int) -> InputPacking:
        """Where the pixels of block number `block` lie among the linear layer's features."""
        height, width = self.side
        places = torch.zeros(self.shape, dtype=torch.int64)
        down, right = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        for number, one in enumerate(self.carried()):
            channel = block * self.block + number
            features = channel * height * width + down * width + right
            places[one.channel, down * self.cell + one.down, right * self.cell + one.right] = features
        low = float(known.min())
        return InputPacking(self.shape, places.flatten(), low, float(known.max()), max(0.0, -low))

    def constants(self, block: int) -> int:
        """The feature that is 1 for every sample of that block's client, and 0 for all others."""
        return (block * self.block + self.block - 1) * prod(self.side) + prod(self.side) // 2


def pass_through_of(model: nn.Module, layer: str, shape: tuple[int, ...]) -> PassThrough:
    """How images of `shape` get through the convolutions before `layer`; NotApplicable where they cannot."""
    if len(shape) != 3:
        raise NotApplicable("Convolutions pass on images; these inputs are none.")
    convolutions: list[str] = []
    cell, height, width, channels = 1, shape[1], shape[2], shape[0]
    for name, module in parts_of(model):
        if name == layer:
            break
        if isinstance(module, _PASSING):
            continue
        if not isinstance(module, nn.Conv2d) or module.bias is None or module.groups != 1:
            raise NotApplicable(f"An image does not get through {kind_of(module)} as it is.")
        (down, right), (above, left), kernel = module.stride, _padding(module), module.kernel_size
        fits = down == right and height % down == 0 and width % right == 0
        reaches = above + down <= kernel[0] and left + right <= kernel[1]
        same = height + 2 * above - kernel[0] + down >= height
        if not (fits and reaches and same):
            raise NotApplicable("A convolution has no kernels that pass every pixel on.")
        cell, height, width, channels = cell * down, height // down, width // right, module.out_channels
        if channels < shape[0] * cell**2:
            raise NotApplicable(f"A convolution of {channels} channels has no room for all pixels of an image.")
        convolutions.append(name)
    found = PassThrough(tuple(convolutions), shape, cell, (height, width), channels, 0)
    return PassThrough(tuple(convolutions), shape, cell, (height, width), channels, max(channels // found.block, 1))


@torch.no_grad()
def plant_pass_through(model: nn.Module, state: Tensors, through: PassThrough, low: float, block: int) -> Tensors:
    """The state with convolutions that put an input's pixels into block number `block`, raised above zero."""
    planted = {name: tensor.clone() for name, tensor in state.items()}
    before = [Carried(channel, 0, 0) for channel in range(through.shape[0])]
    cell, shift = 1, max(0.0, -low)
    for number, name in enumerate(through.convolutions):
        module = model.get_submodule(name)
        assert isinstance(module, nn.Conv2d)
        weight, bias = planted[f"{name}.weight"], planted[f"{name}.bias"]
        weight.zero_()
        bias.zero_()
        last, stride = number == len(through.convolutions) - 1, int(module.stride[0])
        start = block * through.block if last else 0
        after = []
        for place, (source, down, right) in enumerate(product(range(len(before)), range(stride), range(stride))):
            above, left = (edge + off for edge, off in zip(_padding(module), (down, right), strict=True))
            one = before[source]
            after.append(Carried(one.channel, one.down + cell * down, one.right + cell * right))
            out = start + (place if not last else _order(through, after[-1]))
            weight[out, source, above, left] = 1.0
            bias[out] = shift if number == 0 else 0.0
        if last and start + through.block <= len(bias):
            bias[start + through.block - 1] = 1.0
        before, cell = after, cell * stride
    return planted


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    if isinstance(module.padding, str):
        raise NotApplicable(f"A convolution with padding {module.padding!r} is not made to pass pixels on.")
    return module.padding[0], module.padding[1]


def _order(through: PassThrough, one: Carried) -> int:
    return through.carried().index(one)
