"""Prefixes that are grown token by token, with keys and values of their tokens kept: a decoder never looks ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from fedspill.models.lora import linear_weight
from fedspill.models.text_transformer import Block, TextTransformer

_NUMBERS_AT_ONCE = 1 << 24  # that pairs of a prefix and a token may take in one pass, 64 MB in float32


def block_of(net: TextTransformer, number: int) -> Block:
    block = net.h[number]
    assert isinstance(block, Block)
    return block


@dataclass(frozen=True, eq=False)
class NextTokens:
    """Tokens that are tried at the next place behind every prefix, in the first block."""

    tokens: Tensor  # (tokens,)
    state: Tensor  # (tokens, width) embedded
    query: Tensor  # (tokens, heads, depth)
    key: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs of a prefix and a token behind it, in all blocks."""

    prefixes: Tensor  # (n,) numbers of prefixes
    tokens: Tensor  # (n,)
    inner: list[Tensor]  # per block (n, 4 width): what the last matrix reads
    keys: list[Tensor]  # per block (n, heads, depth)
    values: list[Tensor]
    read: Tensor  # (n, width) by the feed-forward part of the last block that is followed


@dataclass(frozen=True, eq=False)
class Growing:
    """Prefixes of one length, with keys and values of their tokens in the first blocks."""

    net: TextTransformer
    texts: list[list[int]]
    keys: list[Tensor]  # per block (texts, length, heads, depth)
    values: list[Tensor]

    @staticmethod
    def begun(net: TextTransformer, blocks: int = 1) -> Growing:
        """One prefix without any token, followed through so many blocks."""
        heads = block_of(net, 0).attn.heads
        empty = torch.zeros(1, 0, heads, net.wte.embedding_dim // heads, device=net.wte.weight.device)
        return Growing(net, [[]], [empty] * blocks, [empty] * blocks)

    def try_next(self, tokens: Tensor) -> NextTokens:
        block = block_of(self.net, 0)
        state = self.net.wte(tokens) + self.net.wpe.weight[self.keys[0].shape[1]]
        return NextTokens(tokens, state, *self._asked(block, block.ln_1(state)))

    def operations(self, behind: NextTokens, directions: int) -> float:
        """Floating-point operations of `brought` with so many columns, roughly."""
        many, length, heads, depth = self.keys[0].shape
        return 2.0 * many * len(behind.tokens) * heads * (length + 1) * (directions + depth)

    def brought(self, behind: NextTokens, through: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """(prefixes, tokens, m) what attention brings each token behind each prefix, turned by `through` (width, m).

        Values are turned before they are mixed: they are few, and a pair then costs as many products as a prefix has
        tokens and the block heads, and not as many as the model is wide. In parts that fit into memory, each with the
        number of its first prefix and of its first token.
        """
        many, length, heads, depth = self.keys[0].shape
        turn = through.view(heads, depth, -1)
        per_pair = 2 * turn.shape[2] + heads * (length + 1)
        columns = max(1, min(len(behind.tokens), _NUMBERS_AT_ONCE // (per_pair + heads * turn.shape[2])))
        rows = max(1, _NUMBERS_AT_ONCE // (per_pair * columns))
        own = (behind.query * behind.key).sum(-1) / sqrt(depth)  # (tokens, heads)
        turned = torch.einsum("alhd,hdm->ahlm", self.values[0].to(turn), turn).flatten(1, 2)
        for column in range(0, len(behind.tokens), columns):
            part = slice(column, column + columns)
            turned_own = torch.einsum("thd,hdm->thm", behind.value[part].to(turn), turn)
            for row in range(0, many, rows):
                keys = self.keys[0][row : row + rows]
                scores = torch.einsum("thd,alhd->athl", behind.query[part], keys) / sqrt(depth)
                weights = torch.cat([scores, own[part].expand(len(keys), -1, -1)[..., None]], -1).softmax(-1).to(turn)
                alone = weights[..., -1].transpose(0, 1) @ turned_own  # (tokens, prefixes, m)
                yield (
                    row,
                    column,
                    torch.baddbmm(alone.transpose(0, 1), weights[..., :-1].flatten(2), turned[row : row + rows]),
                )

    def attended(self, behind: NextTokens, prefixes: Tensor, chosen: Tensor) -> Tensor:
        """(n, width) what the first feed-forward part reads of these tokens behind these prefixes, by their numbers."""
        block = block_of(self.net, 0)
        told = (behind.state, behind.query, behind.key, behind.value)
        parts = [
            self._attend(0, some, *(of_token[those] for of_token in told))
            for some, those in self._in_parts(prefixes, chosen)
        ]
        read: Tensor = block.ln_2(torch.cat(parts))
        return read

    def judged(self, prefixes: Tensor, tokens: Tensor) -> Judged:
        """These tokens behind these prefixes (n,), through all blocks that are followed."""
        parts = [self._through_blocks(some, those) for some, those in self._in_parts(prefixes, tokens)]
        inner, keys, values = (
            [torch.cat(of_block) for of_block in zip(*column, strict=True)]
            for column in list(zip(*parts, strict=True))[:3]
        )
        return Judged(prefixes, tokens, inner, keys, values, torch.cat([part[3] for part in parts]))

    def grown(self, behind: NextTokens, prefixes: Tensor, chosen: Tensor) -> Growing:
        """The prefixes with these numbers, each with the token with that number behind it; in the first block."""
        nothing = behind.state[:0]
        judged = Judged(prefixes, behind.tokens[chosen], [], [behind.key[chosen]], [behind.value[chosen]], nothing)
        return self.followed(judged, torch.arange(len(prefixes), device=prefixes.device))

    def followed(self, judged: Judged, chosen: Tensor) -> Growing:
        """The pairs with these numbers, as longer prefixes."""
        prefixes = judged.prefixes[chosen]
        pairs = zip(prefixes.tolist(), judged.tokens[chosen].tolist(), strict=True)
        return Growing(
            self.net,
            [[*self.texts[prefix], token] for prefix, token in pairs],
            [
                torch.cat([old[prefixes], new[chosen][:, None]], 1)
                for old, new in zip(self.keys, judged.keys, strict=True)
            ],
            [
                torch.cat([old[prefixes], new[chosen][:, None]], 1)
                for old, new in zip(self.values, judged.values, strict=True)
            ],
        )

    def _through_blocks(
        self, prefixes: Tensor, tokens: Tensor
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
        inner, keys, values = [], [], []
        state = self.net.wte(tokens) + self.net.wpe.weight[self.keys[0].shape[1]]
        for number in range(len(self.keys)):
            block = block_of(self.net, number)
            query, key, value = self._asked(block, block.ln_1(state))
            state = self._attend(number, prefixes, state, query, key, value)
            read = block.ln_2(state)
            inner.append(block.mlp.inner(read))
            state = state + block.mlp.c_proj(inner[-1])
            keys.append(key)
            values.append(value)
        return inner, keys, values, read

    def _attend(
        self, number: int, prefixes: Tensor, state: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """(n, width) the state with what attention in that block adds to it."""
        every_key = torch.cat([self.keys[number][prefixes], key[:, None]], 1)
        every_value = torch.cat([self.values[number][prefixes], value[:, None]], 1)
        weights = (torch.einsum("nhd,nlhd->nhl", query, every_key) / sqrt(query.shape[-1])).softmax(-1)
        brought = torch.einsum("nhl,nlhd->nhd", weights, every_value).flatten(1)
        added: Tensor = block_of(self.net, number).attn.c_proj(brought)
        return state + added

    def _in_parts(self, prefixes: Tensor, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (n,), (n,) as many at a time as fit into memory with the keys and values of their prefixes."""
        _, length, heads, depth = self.keys[0].shape
        step = max(1, _NUMBERS_AT_ONCE // (2 * heads * depth * (length + 8)))
        return zip(torch.split(prefixes, step), torch.split(tokens, step), strict=True)

    def _asked(self, block: Block, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, heads, depth) queries, keys and values of tokens whose normalised state is read (n, width)."""
        weight, bias = linear_weight(block.attn.c_attn)
        parts = nn.functional.linear(read, weight, bias).view(len(read), 3, *self.keys[0].shape[2:])
        query, key, value = parts.unbind(1)
        return query, key, value
