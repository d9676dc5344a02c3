"""The multi-layer perceptrons of papers 002 (784-256-64), 003 (3072-1024-1024-1024) and 004 (518-1024-512-1)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec
from fedspill.models.activations import Activation, activation
from fedspill.models.checks import require_positive, require_rate


@final
@dataclass(frozen=True)
class Mlp(ModelSpec):
    """Linear layers with an activation between them; images are flattened. Also the model for tables.

    002: widths (256, 64), last_dropout false.
    003: widths (1024, 1024, 1024); its Table 8 varies `last_activation` only.
    004: widths (1024, 512), activation "elu" with alpha -2, logits 1.
    """

    name = "mlp"
    title = "Multi-layer perceptron"
    paper = "002 Eavesdrop; 003 LLBG; 004 AAI*"

    widths: tuple[int, ...] = (256, 64)
    activation: Activation = "relu"
    last_activation: Activation | None = None  # of the last hidden layer, where it differs
    alpha: float = 1.0  # of "elu"
    last_bias: bool = True
    dropout: float = 0.0  # behind every hidden activation
    last_dropout: bool = True  # also behind the last; 002 drops between the hidden layers only
    logits: int | None = None  # instead of one per class; 1 is a sigmoid head, trained with binary cross-entropy

    def __post_init__(self) -> None:
        require_positive("widths", *self.widths)
        if self.logits is not None:
            require_positive("logits", self.logits)
        require_rate("dropout", self.dropout)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        features = prod(shape)
        for number, width in enumerate(self.widths, start=1):
            last = number == len(self.widths)
            kind = self.last_activation if last and self.last_activation else self.activation
            layers[f"fc{number}"] = nn.Linear(features, width)
            layers[f"activation{number}"] = activation(kind, alpha=self.alpha)
            if self.dropout and (self.last_dropout or not last):
                layers[f"dropout{number}"] = nn.Dropout(self.dropout)
            features = width
        layers["head"] = nn.Linear(features, self.logits or classes, bias=self.last_bias)
        return nn.Sequential(layers)
