"""LeNet-5 (LeCun et al. 1998) as paper 002 uses it on CIFAR-10: 6 and 16 filters 5x5, then 400-120-84."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import image_shape, require_pixels, sides_after


@final
@dataclass(frozen=True)
class LeNet5(ModelSpec):
    """Two convolutions, each pooled, and three linear layers; 28 x 28 pixels are padded to the original's 32 x 32."""

    name = "lenet5"
    title = "LeNet-5"
    paper = "LeCun et al., Gradient-based learning applied to document recognition, 1998; in 002 Eavesdrop"

    activation: Activation = "relu"
    pool: Literal["max", "average"] = "max"
    padding: int | None = None  # of the first convolution; None: 2 for images under 32 pixels, else 0
    last_bias: bool = True

    def __post_init__(self) -> None:
        if self.padding is not None and self.padding < 0:
            raise UsageError(f"The option 'padding' takes whole numbers from 0 up, got {self.padding}.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        padding = self.padding if self.padding is not None else (2 if min(height, width) < 32 else 0)
        sides = sides_after(sides_after((height, width), kernel=5, padding=padding), kernel=2, stride=2)
        sides = require_pixels(sides_after(sides_after(sides, kernel=5), kernel=2, stride=2), shape, self.name)
        pool = nn.MaxPool2d if self.pool == "max" else nn.AvgPool2d
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=padding),
            activation1=activation(self.activation),
            pool1=pool(2),
            conv2=nn.Conv2d(6, 16, 5),
            activation2=activation(self.activation),
            pool2=pool(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * sides[0] * sides[1], 120),
            activation3=activation(self.activation),
            fc2=nn.Linear(120, 84),
            activation4=activation(self.activation),
            head=nn.Linear(84, classes, bias=self.last_bias),
        )
        return nn.Sequential(layers)
