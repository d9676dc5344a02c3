"""Which tensor has a row for each token: by what the model does where its code is known, by how rows move elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.messages import Message
from fedspill.models.lookups import Table, token_tables
from fedspill.trace import View

# What libraries and people call it; "shared" is T5's.
_CALLED = re.compile(r"emb|wte|word|tok|lookup|vocab|bag|shared", re.IGNORECASE)
_NO_TOKENS = re.compile(r"pos|wpe|type|segment|norm|lora", re.IGNORECASE)
_LOOKED_AT = 64  # texts among which tokens are sought that differ
_COMPARED = 20  # messages that are enough to see which rows move sometimes


@dataclass(frozen=True)
class TokenEmbedding:
    """The tensor with a row for each token, its shape (tokens, width), and the row of padding."""

    table: Table
    shape: torch.Size
    padding: int | None = None

    @property
    def name(self) -> str:
        return self.table.name

    def rows_in(self, message: Message) -> Tensor | None:
        """(tokens, width) what the message says of it, in float64; None where it is missing or of another make."""
        tensor = message.tensors.get(self.name)
        if tensor is None or tensor.ndim != 2 or not tensor.is_floating_point():
            return None
        rows = self.table.rows_of(tensor).double()
        return rows if rows.shape == self.shape else None


def find_embedding(view: View, messages: Sequence[Message]) -> TokenEmbedding:
    """The table of tokens; positions, segments and the like have fewer rows, or rows that always move."""
    if not view.has("architecture"):
        tables = _by_behaviour([Table(name) for name in _named(messages) or _unnamed(messages)], messages)
        if not tables:
            raise NotApplicable(
                "No tensor is called like an embedding of tokens (emb, wte, word, tok, lookup, vocab, bag, shared) or "
                "moves like one: either there is none, or whoever has the messages alone cannot tell which one it is."
            )
        return TokenEmbedding(tables[0], _matrices(messages, tables[0].name)[0].shape)
    model: nn.Module = view.knows("architecture")()
    parameters = dict(model.named_parameters())
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    padding_of = {id(layer.weight): layer.padding_idx for layer in layers}
    tables = _by_reading(model, texts_known(view))
    if not tables:
        called = [name for name, one in parameters.items() if id(one) in padding_of] or _unnamed(messages)
        tables = _by_behaviour([Table(name) for name in called if name in parameters], messages)
    if not tables:
        raise NotApplicable("The model has no embedding: its inputs are no tokens.")
    trained = [table for table in tables if parameters[table.name].requires_grad]
    table = (trained or tables)[0]
    weight = parameters[table.name]
    return TokenEmbedding(table, table.rows_of(weight).shape, padding_of.get(id(weight)))


def texts_known(view: View) -> Tensor | None:
    """(n, length) texts of the kind that the adversary has, as the model takes them."""
    if not view.has("unlabelled_aux"):
        return None
    texts = view.knows("unlabelled_aux")
    return None if texts.ndim != 2 or not len(texts) or not torch.equal(texts, texts.round()) else texts


def _by_reading(model: nn.Module, texts: Tensor | None) -> list[Table]:
    """The tables of which the model picks other rows for another token, the one with the most rows first."""
    if texts is None or texts.is_floating_point():
        return []
    try:
        return token_tables(model, texts[:_LOOKED_AT])
    except Exception:
        return []  # a user's model may take no text of this kind


def _by_behaviour(tables: Sequence[Table], messages: Sequence[Message]) -> list[Table]:
    """Those with the most rows that move in some messages only first, then those with the most rows."""
    sent = [table for table in tables if _matrices(messages, table.name)]
    if len(sent) < 2:
        return sent

    def told(table: Table) -> tuple[int, int]:
        return _sometimes(table.name, messages), len(_matrices(messages, table.name)[0])

    return sorted(sent, key=told, reverse=True)


def _matrices(messages: Sequence[Message], name: str) -> list[Tensor]:
    """What so many messages say of that matrix, alike in shape to the first."""
    sent = [message.tensors[name] for message in messages if name in message.tensors]
    sent = [tensor for tensor in sent if tensor.ndim == 2][:_COMPARED]
    return [tensor for tensor in sent if tensor.shape == sent[0].shape]


def _moved(name: str, messages: Sequence[Message]) -> Tensor:
    """(messages, rows) which rows moved at all."""
    return torch.stack([tensor.ne(0).any(1) for tensor in _matrices(messages, name)])


def _sometimes(name: str, messages: Sequence[Message]) -> int:
    """How many rows moved in some messages and stood still in others."""
    moved = _moved(name, messages)
    return int((moved.any(0) & ~moved.all(0)).sum())


def _shapes(messages: Sequence[Message]) -> dict[str, torch.Size]:
    return {name: t.shape for message in messages for name, t in message.tensors.items() if t.ndim == 2}


def _named(messages: Sequence[Message]) -> list[str]:
    return [name for name in _shapes(messages) if _CALLED.search(name) and not _NO_TOKENS.search(name)]


def _unnamed(messages: Sequence[Message]) -> list[str]:
    """Matrices some rows of which always stand still, not always the same ones, and that nothing is computed from.

    A layer of which units are silent has such rows too, but another one reads as many numbers as it has rows.
    """
    shapes = _shapes(messages)
    read = {shape[1] for shape in shapes.values()}
    long = [name for name, shape in shapes.items() if shape[0] > shape[1] and shape[0] not in read]
    return [name for name in long if not bool(_moved(name, messages).all(1).any()) and _sometimes(name, messages)]
