"""MNASNet 1.0 (Tan et al. 2019), torchvision's definition; an ImageNet model of paper 003."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_rate
from fedspill.models.torchvision_shim import adapted, torchvision_models


@final
@dataclass(frozen=True)
class MnasNet(ModelSpec):
    """Mobile inverted bottlenecks found by search, variant B1."""

    name = "mnasnet"
    title = "MNASNet"
    paper = "Tan et al., MnasNet, CVPR 2019; in 003 LLBG"

    width: float = 1.0  # factor on the channels; torchvision ships 0.5, 0.75, 1.0 and 1.3
    dropout: float = 0.2
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_rate("dropout", self.dropout)
        if self.width <= 0:
            raise UsageError(f"The option 'width' takes a number above 0, got {self.width}.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = image_shape(shape, self.name)
        network = torchvision_models().MNASNet(self.width, num_classes=classes, dropout=self.dropout)
        return adapted(network, channels=channels, last_bias=self.last_bias)
