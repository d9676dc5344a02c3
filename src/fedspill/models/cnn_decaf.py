"""The custom CNNs of Decaf (paper 000, Table II): a few 3x3 convolutions, a dense layer of 128, a linear head."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import image_shape, require_pixels, require_positive, require_rate, sides_after


@final
@dataclass(frozen=True)
class CnnDecaf(ModelSpec):
    """2 convolutions and 1 pool (MNIST, Fashion-MNIST), or `blocks` of convolution and pool (CIFAR-10, Skin, FER).

    The paper gives the count of layers and the width of the last one. Channels 32, 64, 128, 256, kernel 3 and pool 2
    are those of the stock MNIST example; padding is none without blocks, as there, and one pixel within blocks.
    """

    name = "cnn-decaf"
    title = "CNN of Decaf"
    paper = "000 Decaf, Table II"

    blocks: int | None = None  # 0: 2 convolutions + 1 pool; None: Table II's 0, 3 or 4 for the input's shape
    width: int = 32  # channels of the first convolution; the others follow in proportion
    dense: int = 128  # inputs of the last layer; Figure 8 goes up to 1024
    activation: Activation = "relu"
    dropout: float = 0.0  # before and behind the dense layer; the defense of Figure 14
    last_bias: bool = True

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 0:
            raise UsageError(f"The option 'blocks' takes whole numbers from 0 up, got {self.blocks}.")
        require_positive("width", self.width)
        require_positive("dense", self.dense)
        require_rate("dropout", self.dropout)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        blocks = _of_table_2(channels, min(height, width)) if self.blocks is None else self.blocks
        pooled = [False, True] if blocks == 0 else [True] * blocks
        padding = 0 if blocks == 0 else 1
        sides, layers = (height, width), OrderedDict[str, nn.Module]()
        for number, pool in enumerate(pooled, start=1):
            filters = self.width * 2 ** min(number - 1, 3)
            layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=padding)
            layers[f"activation{number}"] = activation(self.activation)
            channels, sides = filters, sides_after(sides, kernel=3, padding=padding)
            if pool:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
                sides = sides_after(sides, kernel=2, stride=2)
            require_pixels(sides, shape, self.name)
        if self.dropout:
            layers["dropout_before"] = nn.Dropout(self.dropout)
        layers["flatten"] = nn.Flatten()
        layers["dense"] = nn.Linear(channels * sides[0] * sides[1], self.dense)
        layers["dense_activation"] = activation(self.activation)
        if self.dropout:
            layers["dropout_behind"] = nn.Dropout(self.dropout)
        layers["head"] = nn.Linear(self.dense, classes, bias=self.last_bias)
        return nn.Sequential(layers)


def _of_table_2(channels: int, side: int) -> int:
    """Blocks for grey 28 pixels (MNIST, Fashion-MNIST), for colour 28 (Skin) and 32 (CIFAR-10), and for 48 (FER)."""
    if channels == 1 and side < 32:
        return 0
    return 3 if side < 48 else 4
