"""Which tensor is the embedding of the tokens: by the model's code where it is known, by its name elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedspill.errors import NotApplicable
from fedspill.messages import Message
from fedspill.trace import View

# What libraries and people call it; "shared" is T5's.
_CALLED = re.compile(r"emb|wte|word|tok|lookup|vocab|bag|shared", re.IGNORECASE)
_NO_TOKENS = re.compile(r"pos|wpe|type|segment|norm|lora", re.IGNORECASE)


@dataclass(frozen=True)
class TokenEmbedding:
    """Name and shape (tokens, width) of the tensor with a row for each token."""

    name: str
    shape: torch.Size
    padding: int | None = None


def find_embedding(view: View, messages: Sequence[Message]) -> TokenEmbedding:
    """The embedding with the most rows: positions, segments and the like have fewer."""
    if view.has("architecture"):
        model: nn.Module = view.knows("architecture")()
        layers = [
            TokenEmbedding(f"{name}.weight" if name else "weight", layer.weight.shape, layer.padding_idx)
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        ]
        if not layers:
            raise NotApplicable("The model has no embedding: its inputs are no tokens.")
    else:
        shapes = {
            name: tensor.shape
            for message in messages
            for name, tensor in message.tensors.items()
            if tensor.ndim == 2 and _CALLED.search(name) and not _NO_TOKENS.search(name)
        }
        layers = [TokenEmbedding(name, shape) for name, shape in shapes.items()]
        if not layers:
            raise NotApplicable(
                "No tensor is called like an embedding of tokens (emb, wte, word, tok, lookup, vocab, bag, shared): "
                "either there is none, or whoever has the messages alone cannot tell which one it is."
            )
    return max(layers, key=lambda layer: layer.shape[0])
