"""A residual network cut in two, as split learning has it: the client's part is that of the FSHA paper.

Pasquini, Ateniese and Bernaschi, Unleashing the Tiger, CCS 2021, and the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape
from fedspill.models.vertical import Strips, VerticalNet


@final
@dataclass(frozen=True)
class SplitResNet(ModelSpec):
    """A convolution with batch norm and a pool, then residual blocks; the client has one block for each `level`.

    The paper leaves the server's part open, since its server never trains it: here it is a mean over all places and a
    linear layer. Sides must be multiples of 8 at level 4, of 4 at 2 and 3, of 2 at 1.
    """

    name = "split-resnet"
    title = "A residual network cut in two"
    paper = "Pasquini et al. 2021, Unleashing the Tiger, and the authors' code"

    level: int = 4
    last_bias: bool = True

    def __post_init__(self) -> None:
        if self.level not in range(1, 5):
            raise UsageError(f"The client has 1 to 4 residual blocks, got {self.level}.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        image = image_shape(shape, self.name)
        smaller = 8 if self.level == 4 else 4 if self.level > 1 else 2
        if image[1] % smaller or image[2] % smaller:
            raise UsageError(f"At level {self.level} sides must be multiples of {smaller}, got {image[1:]}.")
        blocks: list[nn.Module] = [Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1), Block(128, 256, 2)]
        first: list[nn.Module] = [nn.Conv2d(image[0], 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
        tower = nn.Sequential(*first, *blocks[: self.level], nn.Flatten())
        channels = (64, 128, 128, 256)[self.level - 1]
        maps = (channels, image[1] // smaller, image[2] // smaller)
        neck = nn.Sequential(nn.Unflatten(1, maps), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return VerticalNet(
            Strips(1),
            [image],
            [tower],
            nn.Linear(channels, classes, bias=self.last_bias),
            neck=neck,
            double_softmax=False,
        )


@final
class Block(nn.Module):
    """Two convolutions, each behind a ReLU, beside a way past them, which is a convolution where the size changes."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, wider, 3, stride, 1), nn.ReLU(), nn.Conv2d(wider, wider, 3, 1, 1)
        )
        self.past = nn.Conv2d(channels, wider, 3, stride, 1) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.past(x) + self.inner(x)
        return out
