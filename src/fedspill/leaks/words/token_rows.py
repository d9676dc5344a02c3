"""Which rows of an embedding stand for a token, where the model does not look it up under its own number.

Hashed words and pairs of words, shifted numbers, a part of the vocabulary: the model's code says which rows a text
looks up. A token's own rows are those that it brings into every text that it is put into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.leaks.words.token_embedding import TokenEmbedding
from fedspill.trace import View

_LOOKED_AT = 16  # texts by which it is seen whether rows are tokens
_BESIDE = 3  # texts that a token is put into
_AT_ONCE = 1024
_MOST_TOKENS = 300_000


class _Seen(Exception):
    """The embedding has been asked: the rest of the model need not run."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """For each token its own rows; tokens without any are left out."""

    rows: dict[int, frozenset[int]]

    @staticmethod
    def known_to(view: View, embedding: TokenEmbedding) -> TokenRows | None:
        """None where rows are tokens, or where nothing says otherwise."""
        if not view.has("architecture") or not view.has("unlabelled_aux"):
            return None
        texts = view.knows("unlabelled_aux")
        if texts.ndim != 2 or not len(texts) or not torch.equal(texts, texts.round()) or int(texts.min()) < 0:
            return None
        model: nn.Module = view.knows("architecture")()
        layer = model.get_submodule(embedding.name.removesuffix("weight").removesuffix("."))
        looked = looked_up(model, layer, texts[:_LOOKED_AT])
        if looked is None:
            return None
        own = [set(map(int, row)) for row in texts[:_LOOKED_AT].tolist()]
        if all(rows <= tokens for rows, tokens in zip(looked, own, strict=True)):
            return None
        return TokenRows(_own_rows(model, layer, texts))

    def named(self, moved: Tensor) -> Tensor:
        """(k,) the tokens all of whose rows moved, in order; where several share a row, all of them."""
        there = set(moved.tolist())
        return torch.tensor(sorted(token for token, rows in self.rows.items() if rows <= there), dtype=torch.int64)


def _own_rows(model: nn.Module, layer: nn.Module, texts: Tensor) -> dict[int, frozenset[int]]:
    """Of every number that may be a token the rows that are looked up whatever it stands beside."""
    # Were there more tokens than that, so many drawn ones would all be so small in one case of a hundred only.
    many = int((int(texts.max()) + 1) * 100 ** (1 / len(torch.unique(texts))))
    many = min(many, _MOST_TOKENS)
    place = texts.shape[1] // 2
    beside = texts[torch.arange(_BESIDE) % len(texts)]
    found: dict[int, frozenset[int]] = {}
    for numbers in torch.split(torch.arange(many), _AT_ONCE):
        common: list[set[int]] = []
        for text in beside:
            batch = text.repeat(len(numbers), 1)
            batch[:, place] = numbers.to(batch)
            looked = looked_up(model, layer, batch)
            if looked is None:
                raise NotApplicable("The rows of the embedding are not the words, and which a word has cannot be seen.")
            common = [a & b for a, b in zip(common, looked, strict=True)] if common else list(looked)
        found |= dict(zip(numbers.tolist(), map(frozenset, common), strict=True))
    # Rows that half of the tokens bring belong to none: a mark at the beginning, or what the texts have in common.
    times = Counter(row for rows in found.values() for row in rows)
    every = {row for row, count in times.items() if count > max(1, many // 2)}
    kept = {token: rows - every for token, rows in found.items()}
    return {token: rows for token, rows in kept.items() if rows}


@torch.no_grad()
def looked_up(model: nn.Module, layer: nn.Module, texts: Tensor) -> Sequence[set[int]] | None:
    """Of each text (n, length) the rows that the layer is asked for; None where that cannot be told."""
    asked: list[Tensor] = []

    def catch(module: Any, given: tuple[Tensor, ...]) -> None:
        asked.append(given[0].detach().cpu())
        raise _Seen

    handle = layer.register_forward_pre_hook(catch)
    was, device = model.training, next(model.parameters()).device
    try:
        model.eval()(texts.to(device))
    except _Seen:
        pass
    except Exception:
        return None  # a user's model may take no text of this kind
    finally:
        handle.remove()
        model.train(was)
    if not asked or asked[0].numel() % len(texts):
        return None
    return [set(row) for row in asked[0].reshape(len(texts), -1).tolist()]
