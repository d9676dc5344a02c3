"""ShuffleNet V2 1.0 (Ma et al. 2018), torchvision's definition; an ImageNet model of paper 003."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape
from fedspill.models.torchvision_shim import adapted, torchvision_models


@final
@dataclass(frozen=True)
class ShuffleNetV2(ModelSpec):
    """Half of the channels pass each block untouched, and the channels are shuffled between blocks."""

    name = "shufflenet-v2"
    title = "ShuffleNet V2"
    paper = "Ma et al., ShuffleNet V2, ECCV 2018; in 003 LLBG"

    last_bias: bool = True

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = image_shape(shape, self.name)
        network = torchvision_models().shufflenet_v2_x1_0(num_classes=classes)
        return adapted(network, channels=channels, last_bias=self.last_bias)
