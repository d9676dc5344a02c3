"""VGG-11, -16 and -19 (Simonyan and Zisserman 2015): paper 003's for CIFAR-100, and the original by options."""

from __future__ import annotations

from abc import ABC
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_positive, require_rate

_STAGE_CHANNELS = (64, 128, 256, 512, 512)


@dataclass(frozen=True)
class Vgg(ModelSpec, ABC):
    """Five stages of 3x3 convolutions, each ending in a pool, then linear layers.

    The default is 003's CIFAR network: batch norm and one linear layer. Its ImageNet network, the original, is
    batch_norm false, hidden (4096, 4096), pool 7, dropout 0.5. Decaf's "1000 x N" head adds a hidden layer of 1000.
    """

    convolutions: ClassVar[tuple[int, ...]]  # of each stage

    batch_norm: bool = True
    hidden: tuple[int, ...] = ()  # widths of the linear layers before the last
    pool: int = 1  # the last stage is averaged to pool x pixels a side
    dropout: float = 0.0  # behind each hidden linear layer
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("hidden", *self.hidden)
        require_positive("pool", self.pool)
        require_rate("dropout", self.dropout)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        # Five pools halve 32 pixels to one; smaller images keep their odd rows, or nothing would be left of them.
        keep_odd = min(height, width) < 32
        features: list[nn.Module] = []
        for filters, count in zip(_STAGE_CHANNELS, self.convolutions, strict=True):
            for _ in range(count):
                features.append(nn.Conv2d(channels, filters, 3, padding=1))
                if self.batch_norm:
                    features.append(nn.BatchNorm2d(filters))
                features.append(nn.ReLU())
                channels = filters
            features.append(nn.MaxPool2d(2, ceil_mode=keep_odd))
        network = nn.Sequential(
            OrderedDict[str, nn.Module](
                features=nn.Sequential(*features),
                avgpool=nn.AdaptiveAvgPool2d(self.pool),
                flatten=nn.Flatten(),
                classifier=self._classifier(channels * self.pool**2, classes),
            )
        )
        _initialise(network)
        return network

    def _classifier(self, features: int, classes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [
                nn.Linear(features, width),
                nn.ReLU(),
                nn.Dropout(self.dropout) if self.dropout else nn.Identity(),
            ]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, classes, bias=self.last_bias))


@final
@dataclass(frozen=True)
class Vgg11(Vgg):
    """VGG-11, configuration A; 003's Table 14 removes its last bias."""

    name = "vgg11"
    title = "VGG-11"
    paper = "Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015; in 003 LLBG"
    convolutions = (1, 1, 2, 2, 2)


@final
@dataclass(frozen=True)
class Vgg16(Vgg):
    """VGG-16, configuration D; Decaf's larger model."""

    name = "vgg16"
    title = "VGG-16"
    paper = "Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015; in 000 Decaf"
    convolutions = (2, 2, 3, 3, 3)


@final
@dataclass(frozen=True)
class Vgg19(Vgg):
    """VGG-19, configuration E; 003's main model."""

    name = "vgg19"
    title = "VGG-19"
    paper = "Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015; in 003 LLBG"
    convolutions = (2, 2, 4, 4, 4)


def _initialise(network: nn.Module) -> None:
    """Kaiming normal by fan-out for convolutions, N(0, 0.01) for linear layers, zero biases."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
