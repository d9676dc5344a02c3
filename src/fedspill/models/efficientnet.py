"""EfficientNet-B0 (Tan and Le 2019), torchvision's definition; an ImageNet model of paper 003."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_rate
from fedspill.models.torchvision_shim import adapted, torchvision_models


@final
@dataclass(frozen=True)
class EfficientNetB0(ModelSpec):
    """Mobile inverted bottlenecks with squeeze-and-excitation and SiLU, whose features may be negative."""

    name = "efficientnet-b0"
    title = "EfficientNet-B0"
    paper = "Tan and Le, EfficientNet, ICML 2019; in 003 LLBG"

    dropout: float = 0.2
    stochastic_depth: float = 0.2  # how often a training step skips the last block, in proportion the earlier ones
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_rate("dropout", self.dropout)
        require_rate("stochastic_depth", self.stochastic_depth)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = image_shape(shape, self.name)
        network = torchvision_models().efficientnet_b0(
            num_classes=classes, dropout=self.dropout, stochastic_depth_prob=self.stochastic_depth
        )
        return adapted(network, channels=channels, last_bias=self.last_bias)
