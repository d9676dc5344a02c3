"""The MNIST CNN of paper 002 (Eavesdrop): convolutions of 10 and 20 filters 5x5, then 320-50-10."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import image_shape, require_pixels, require_positive, require_rate, sides_after


@final
@dataclass(frozen=True)
class CnnEavesdrop(ModelSpec):
    """Two convolutions, each pooled, and two linear layers; 320 features arise from 28 x 28 pixels.

    "An output layer whose size is 50" is read as its input width. The authors' follow-up drops whole channels behind
    the second convolution and single features before the head, both at 0.5; the paper says "a dropout layer".
    """

    name = "cnn-eavesdrop"
    title = "CNN of Eavesdrop"
    paper = "002 Eavesdrop, section IV-A"

    dense: int = 50
    activation: Activation = "relu"
    dropout: float = 0.5  # 0: no dropout
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("dense", self.dense)
        require_rate("dropout", self.dropout)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        sides = (height, width)
        for _ in range(2):
            sides = sides_after(sides_after(sides, kernel=5), kernel=2, stride=2)
        require_pixels(sides, shape, self.name)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, 10, 5),
            pool1=nn.MaxPool2d(2),
            activation1=activation(self.activation),
            conv2=nn.Conv2d(10, 20, 5),
            dropout2=nn.Dropout2d(self.dropout) if self.dropout else nn.Identity(),
            pool2=nn.MaxPool2d(2),
            activation2=activation(self.activation),
            flatten=nn.Flatten(),
            fc1=nn.Linear(20 * sides[0] * sides[1], self.dense),
            activation3=activation(self.activation),
            dropout3=nn.Dropout(self.dropout) if self.dropout else nn.Identity(),
            head=nn.Linear(self.dense, classes, bias=self.last_bias),
        )
        return nn.Sequential(layers)
