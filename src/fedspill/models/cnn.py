"""The CNN of paper 003: four convolutions without batch norm, known as ConvNetSmall of width 256."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import image_shape, require_pixels, require_positive, sides_after


@final
@dataclass(frozen=True)
class Cnn(ModelSpec):
    """3x3 convolutions of 1, 2, 4 and 4 times `width` channels, the last two with stride 2, and a global average."""

    name = "cnn"
    title = "CNN of four convolutions"
    paper = "003 LLBG, Table 1"

    width: int = 256
    activation: Activation = "relu"
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("width", self.width)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, breadth = image_shape(shape, self.name)
        halved = sides_after((height, breadth), kernel=3, stride=2, padding=1)
        require_pixels(sides_after(halved, kernel=3, stride=3), shape, self.name)
        width = self.width
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, width, 3, padding=1),
            activation1=activation(self.activation),
            conv2=nn.Conv2d(width, 2 * width, 3, padding=1),
            activation2=activation(self.activation),
            conv3=nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            activation3=activation(self.activation),
            pool=nn.MaxPool2d(3),
            conv4=nn.Conv2d(4 * width, 4 * width, 3, stride=2, padding=1),
            activation4=activation(self.activation),
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(4 * width, classes, bias=self.last_bias),
        )
        return nn.Sequential(layers)
