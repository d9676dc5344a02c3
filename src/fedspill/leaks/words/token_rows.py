"""Which rows of an embedding stand for a token, where the model does not look it up under its own number.

Hashed words and pairs of words, shifted numbers, a part of the vocabulary: the model's code says which rows a text
looks up. A token's own rows are those that it brings into every text that it is put into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.leaks.words.token_embedding import TokenEmbedding, texts_known
from fedspill.models.lookups import Table, rows_picked
from fedspill.trace import View

_LOOKED_AT = 16  # texts by which it is seen whether rows are tokens
_BESIDE = 3  # texts, each of one token alone, that a token is put into
_AT_ONCE = 1024
_MOST_TOKENS = 300_000


@dataclass(frozen=True, eq=False)
class TokenRows:
    """For each token its own rows; tokens without any are left out."""

    rows: dict[int, frozenset[int]]

    @staticmethod
    def known_to(view: View, embedding: TokenEmbedding) -> TokenRows | None:
        """None where rows are tokens, or where nothing says otherwise."""
        texts = texts_known(view)
        if not view.has("architecture") or texts is None or int(texts.min()) < 0:
            return None
        model: nn.Module = view.knows("architecture")()
        looked = looked_up(model, embedding.table, texts[:_LOOKED_AT])
        if looked is None:
            return None
        own = [set(map(int, row)) for row in texts[:_LOOKED_AT].tolist()]
        if all(rows <= tokens for rows, tokens in zip(looked, own, strict=True)):
            return None
        return TokenRows(_own_rows(model, embedding.table, texts))

    def named(self, moved: Tensor) -> Tensor:
        """(k,) the tokens all of whose rows moved, in order; where several share a row, all of them."""
        there = set(moved.tolist())
        return torch.tensor(sorted(token for token, rows in self.rows.items() if rows <= there), dtype=torch.int64)


def _own_rows(model: nn.Module, table: Table, texts: Tensor) -> dict[int, frozenset[int]]:
    """Of every number that may be a token the rows that are looked up whatever it stands beside."""
    # Were there more tokens than that, so many drawn ones would all be so small in one case of a hundred only.
    many = int((int(texts.max()) + 1) * 100 ** (1 / len(torch.unique(texts))))
    many = min(many, _MOST_TOKENS)
    place, length = texts.shape[1] // 2, texts.shape[1]
    used = torch.unique(texts)
    beside = used[torch.linspace(0, len(used) - 1, min(len(used), _BESIDE)).long()]
    found: dict[int, frozenset[int]] = {}
    for numbers in torch.split(torch.arange(many), _AT_ONCE):
        common: list[set[int]] = []
        for token in beside:
            batch = token.repeat(len(numbers), length)
            batch[:, place] = numbers.to(batch)
            looked = looked_up(model, table, batch)
            if looked is None:
                raise NotApplicable("The rows of the embedding are not the words, and which a word has cannot be seen.")
            common = [a & b for a, b in zip(common, looked, strict=True)] if common else list(looked)
        found |= dict(zip(numbers.tolist(), map(frozenset, common), strict=True))
    # Rows that half of the tokens bring belong to none: a mark at the beginning, or what the texts have in common.
    times = Counter(row for rows in found.values() for row in rows)
    every = {row for row, count in times.items() if count > max(1, many // 2)}
    kept = {token: rows - every for token, rows in found.items()}
    return {token: rows for token, rows in kept.items() if rows}


def looked_up(model: nn.Module, table: Table, texts: Tensor) -> Sequence[set[int]] | None:
    """Of each text (n, length) the rows that the model picks; None where that cannot be told."""
    try:
        looked = rows_picked(model, table, texts)
    except Exception:
        return None  # a user's model may take no text of this kind
    return looked if any(looked) else None
