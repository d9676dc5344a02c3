"""A recurrent network over text (GRU, Cho et al. 2014; LSTM, Hochreiter and Schmidhuber 1997), as phones have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from fedspill.models.checks import require_positive
from fedspill.models.text_model import Objective, TextModel, is_token


@final
@dataclass(frozen=True)
class Recurrent(TextModel):
    """Embedding, one recurrent layer, a linear head; for classes, or for every next token (objective "next")."""

    name = "recurrent"
    title = "GRU or LSTM over text"
    paper = "Hard et al., Federated learning for mobile keyboard prediction, 2018"

    cell: Literal["gru", "lstm"] = "gru"
    width: int = 64  # of an embedding
    hidden: int = 128
    objective: Objective = "class"

    def __post_init__(self) -> None:
        require_positive("width", self.width)
        require_positive("hidden", self.hidden)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        every = self.objective == "next"
        kind = nn.GRU if self.cell == "gru" else nn.LSTM
        outputs = self.vocabulary_size() if every else classes
        layers = self.embedding(self.width, 0.1), kind(self.width, self.hidden, batch_first=True)
        return RecurrentText(*layers, nn.Linear(self.hidden, outputs), every)


class RecurrentText(nn.Module):
    """Reads a text word by word; the class is read off the state behind the last word."""

    def __init__(self, embedding: nn.Embedding, rnn: nn.RNNBase, head: nn.Linear, every_place: bool) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = embedding, rnn, head
        self.every_place = every_place

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.rnn(self.embedding(x))[0]
        if not self.every_place:
            last = is_token(x, self.embedding.padding_idx).long().cumsum(1).argmax(1)
            states = states[torch.arange(len(x), device=x.device), last]
        logits: Tensor = self.head(states)
        return logits
