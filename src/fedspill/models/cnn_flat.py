"""A CNN without pooling: two 3x3 convolutions, a dense layer, a linear head."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_pixels, require_positive, sides_after


@final
@dataclass(frozen=True)
class CnnFlat(ModelSpec):
    """Every pixel still has a place in what the dense layer reads, as in many small networks of federated papers."""

    name = "cnn-flat"
    title = "CNN without pooling"
    paper = "none; the kind of network that LOKI and Robbing the Fed plant in"

    first: int = 8  # channels of the first convolution
    second: int = 16  # of the second
    stride: int = 1  # of the second
    dense: int = 128
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("first", self.first)
        require_positive("second", self.second)
        require_positive("stride", self.stride)
        require_positive("dense", self.dense)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        sides = sides_after((height, width), kernel=3, stride=self.stride, padding=1)
        sides = require_pixels(sides, shape, self.name)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, self.first, 3, padding=1),
            activation1=nn.ReLU(),
            conv2=nn.Conv2d(self.first, self.second, 3, stride=self.stride, padding=1),
            activation2=nn.ReLU(),
            flatten=nn.Flatten(),
            dense=nn.Linear(self.second * sides[0] * sides[1], self.dense),
            activation3=nn.ReLU(),
            head=nn.Linear(self.dense, classes, bias=self.last_bias),
        )
        return nn.Sequential(layers)
