"""The Vision Transformer (Dosovitskiy et al. 2021), torchvision's definition; paper 003's Table 9 attacks ViT-B/16."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, final

from torch import Tensor, nn

from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_positive, require_rate
from fedspill.models.torchvision_shim import adapted, torchvision_models


@final
@dataclass(frozen=True)
class Vit(ModelSpec):
    """Patches as tokens, GELU, a class token that the head reads; the default suits 28 or 32 pixels on a CPU.

    ViT-B/16 for 224 pixels: patch_size 16, hidden 768, layers 12, heads 12, mlp 3072.
    """

    name = "vit"
    title = "Vision Transformer"
    paper = "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; in 003 LLBG"

    patch_size: int = 4
    hidden: int = 192
    layers: int = 6
    heads: int = 3
    mlp: int = 768
    dropout: float = 0.0
    head_std: float = 0.02  # spread of the head's first weights; torchvision's 0 keeps all gradients below it zero
    last_bias: bool = True

    def __post_init__(self) -> None:
        for option in ("patch_size", "hidden", "layers", "heads", "mlp"):
            require_positive(option, getattr(self, option))
        require_rate("dropout", self.dropout)
        if self.hidden % self.heads:
            raise UsageError(f"The option 'hidden' ({self.hidden}) must be a multiple of 'heads' ({self.heads}).")
        if self.head_std < 0:
            raise UsageError(f"The option 'head_std' takes a number from 0 up, got {self.head_std}.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        if height != width or height % self.patch_size:
            raise UsageError(
                f"The model 'vit' takes square images whose side is a multiple of patch_size {self.patch_size}, "
                f"got {height} x {width}.",
                remedy="Choose another patch_size.",
            )
        network = torchvision_models().VisionTransformer(
            image_size=height,
            patch_size=self.patch_size,
            num_layers=self.layers,
            num_heads=self.heads,
            hidden_dim=self.hidden,
            mlp_dim=self.mlp,
            dropout=self.dropout,
            num_classes=classes,
        )
        if self.head_std:
            nn.init.trunc_normal_(network.heads.head.weight, std=self.head_std)
        for layer in network.modules():
            if isinstance(layer, nn.MultiheadAttention):
                layer.register_forward_pre_hook(_plainly, with_kwargs=True)
        fitted = adapted(network, channels=channels, last_bias=self.last_bias)
        nn.init.trunc_normal_(network.conv_proj.weight, std=1 / sqrt(channels * self.patch_size**2))
        return fitted


def _plainly(
    attention: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Makes attention run step by step: its fused forms have no second derivative and no rule for vmap."""
    query, _, _ = args
    keys = query.view_as(query)  # the fast form runs only where query and keys are one and the same object
    return (query, keys, keys), {**kwargs, "need_weights": True}
