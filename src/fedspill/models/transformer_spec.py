"""What the two transformers over text have in common: their sizes, adapters, and weights from a folder."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import nn

from fedspill.errors import UsageError
from fedspill.models.checks import require_positive
from fedspill.models.lora import add_lora
from fedspill.models.text_checkpoint import load_checkpoint
from fedspill.models.text_model import Objective, TextModel
from fedspill.models.text_transformer import TextTransformer


@dataclass(frozen=True)
class TransformerSpec(TextModel, ABC):
    """Sizes of the published base models: layers 12, hidden 768, heads 12. The default suits a CPU."""

    causal: ClassVar[bool]
    epsilon: ClassVar[float]

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    objective: Objective = "class"
    last_bias: bool = True
    std: float = 0.02  # spread of the first weights
    lora_rank: int = 0  # 0: all weights are trained; else adapters and the head alone
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("c_attn",)
    checkpoint: str = ""  # folder with config.json and model.safetensors, as Hugging Face writes them

    def __post_init__(self) -> None:
        for option in ("layers", "hidden", "heads"):
            require_positive(option, getattr(self, option))
        if self.hidden % self.heads:
            raise UsageError(f"The option 'hidden' ({self.hidden}) must be a multiple of 'heads' ({self.heads}).")
        if self.lora_rank < 0 or self.std <= 0:
            raise UsageError("The option 'lora_rank' takes whole numbers from 0 up, 'std' a number above 0.")
        if self.objective == "next" and not self.causal:
            raise UsageError(f"The model {self.name!r} sees the next token, so that it cannot learn to predict it.")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 1:
            raise UsageError(f"The model {self.name!r} takes texts (length,), but the inputs have the shape {shape}.")
        every = self.objective == "next"
        network = TextTransformer(
            self.embedding(self.hidden, self.std),
            positions=shape[0],
            layers=self.layers,
            heads=self.heads,
            causal=self.causal,
            outputs=self.vocabulary_size() if every else classes,
            every_place=every,
            last_bias=self.last_bias,
            epsilon=self.epsilon,
            std=self.std,
        )
        if self.checkpoint:
            load_checkpoint(network, Path(self.checkpoint))
        if self.lora_rank:
            add_lora(network, self.lora_rank, self.lora_alpha, self.lora_targets, keep=("head",))
        return network
