"""The mean of a text's embeddings and a linear layer (fastText, Joulin et al. 2017): the smallest model of text."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from fedspill.models.checks import require_positive
from fedspill.models.text_model import TextModel, is_token


@final
@dataclass(frozen=True)
class MeanEmbedding(TextModel):
    """Classifies a text by its words, in no order."""

    name = "mean-embedding"
    title = "Averaged word embeddings"
    paper = "Joulin et al., Bag of tricks for efficient text classification, EACL 2017"

    width: int = 32

    def __post_init__(self) -> None:
        require_positive("width", self.width)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        embedding = self.embedding(self.width, 0.1)
        return nn.Sequential(
            OrderedDict[str, nn.Module](mean=EmbeddingMean(embedding), head=nn.Linear(self.width, classes))
        )


class EmbeddingMean(nn.Module):
    """(n, length) tokens to (n, width), padding left out."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        real = is_token(x, self.embedding.padding_idx)
        total: Tensor = (self.embedding(x) * real[..., None]).sum(1)
        return total / real.sum(1, keepdim=True)
