"""A small convolutional network cut in two, as in split learning: first layers at a client, the rest at a server.

The network of Erdogan, Kupcu and Cicek, UnSplit, WPES 2022, for MNIST.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_pixels, require_positive, sides_after
from fedspill.models.vertical import Strips, VerticalNet


@final
@dataclass(frozen=True)
class SplitLeNet(ModelSpec):
    """Two convolutions of 8 and 16 filters with ReLU and pooling, then 120-84-classes.

    `cut` is the last layer that the client has: 0 the first convolution, 1 its ReLU, 2 its pool, 3 to 5 the same of the
    second. One party, and no tower of linear layers.
    """

    name = "split-lenet"
    title = "A small convolutional network cut in two"
    paper = "Erdogan et al. 2022, UnSplit, and the authors' code"

    cut: int = 2
    kernel: int = 5
    padding: int = 0
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("kernel", self.kernel)
        if self.padding < 0:
            raise UsageError(f"The option 'padding' takes whole numbers from 0 up, got {self.padding}.")
        if self.cut not in range(6):
            raise UsageError(f"The network is cut behind one of its layers 0 to 5, got {self.cut}.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        image = image_shape(shape, self.name)
        layers: list[nn.Module] = [
            nn.Conv2d(image[0], 8, self.kernel, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, self.kernel, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2),
        ]  # fmt: skip
        own, rest = layers[: self.cut + 1], layers[self.cut + 1 :]
        maps = (8 if self.cut < 3 else 16, *self._behind(own, image))
        features = 16 * prod(require_pixels(self._behind(layers, image), image, self.name))
        neck = nn.Sequential(
            nn.Unflatten(1, maps), *rest, nn.Flatten(), nn.Linear(features, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip
        tower = nn.Sequential(*own, nn.Flatten())
        return VerticalNet(
            Strips(1), [image], [tower], nn.Linear(84, classes, bias=self.last_bias), neck=neck, double_softmax=False
        )

    def _behind(self, layers: Sequence[nn.Module], image: tuple[int, int, int]) -> tuple[int, int]:
        """Height and width behind these layers."""
        sides = image[1:]
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                sides = sides_after(sides, kernel=self.kernel, padding=self.padding)
            elif isinstance(layer, nn.MaxPool2d):
                sides = sides_after(sides, kernel=2, stride=2)
        return sides
