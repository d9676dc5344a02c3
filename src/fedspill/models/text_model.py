"""What every model of text takes from its data: how many tokens there are, and which one is padding."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

from torch import Tensor, nn

from fedspill.dataset import Dataset
from fedspill.errors import UsageError
from fedspill.model_spec import ModelSpec

Objective: TypeAlias = Literal["class", "next"]  # the label of a text, or every next token


@dataclass(frozen=True)
class TextModel(ModelSpec, ABC):
    """A network that reads token numbers (n, length)."""

    tokens: int = 0  # of the vocabulary; 0: as many as the data have
    padding: int = -1  # the token that stands for none; -1: that of the data
    freeze_embeddings: bool = False  # tokens and positions are neither trained nor sent

    def takes_text(self, shape: tuple[int, ...], classes: int) -> bool:
        return True

    def fitted_to(self, dataset: Dataset) -> Self:
        vocabulary = dataset.train.vocabulary
        if vocabulary is None:
            return self
        return replace(self, tokens=self.tokens or len(vocabulary), padding=vocabulary.padding)

    def vocabulary_size(self) -> int:
        if self.tokens < 2:
            raise UsageError(
                f"The model {self.name!r} has to know how many tokens there are.",
                remedy="Set its option 'tokens', or use a data set that brings a vocabulary.",
            )
        return self.tokens

    def embedding(self, width: int, std: float) -> nn.Embedding:
        """A row for each token; that of padding is zero and stays so."""
        padding = self.padding if self.padding >= 0 else None
        made = nn.Embedding(self.vocabulary_size(), width, padding_idx=padding)
        nn.init.normal_(made.weight, std=std)
        if padding is not None:
            nn.init.zeros_(made.weight[padding])
        made.weight.requires_grad_(not self.freeze_embeddings)
        return made


def is_token(x: Tensor, padding: int | None) -> Tensor:
    """(n, length) where there is a token and no padding; the first place of a text always counts."""
    real = x >= 0 if padding is None else x != padding
    return real.index_fill(1, x.new_zeros(1), True)
