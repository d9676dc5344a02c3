"""Decoder: texts are grown token by token, because each token's state depends on the tokens before it alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.leaks.words.exact.token_test import SCREENED, Cells
from fedspill.models.lora import linear_weight
from fedspill.models.text_transformer import Block, TextTransformer

_NUMBERS_AT_ONCE = 1 << 26  # that pairs of a prefix and a token may take in one pass, 256 MB in float32


@dataclass(frozen=True, eq=False)
class _Screen:
    """Directions outside the space, with the linear maps behind them folded in: a pair costs two small products."""

    tilted: Tensor  # (width, directions)
    through_output: Tensor  # (width, directions): of what attention brings
    output_bias: Tensor  # (width,)
    loose: float  # most that a fitting pair leaves, of the size of its token

    @staticmethod
    def of(block: Block, space: RowSpace, tolerance: float, rng: torch.Generator) -> _Screen:
        norm = block.ln_2
        shift = norm.bias.double()
        beside = shift if bool(shift.norm() > 0) else None
        outside = space.outside(SCREENED, rng, beside)
        tilted = norm.weight.double()[:, None] * outside
        tilted = (tilted - tilted.mean(0)).float()
        weight, bias = linear_weight(block.attn.c_proj)
        thinned = (max(space.free, 1) / outside.shape[1]) ** 0.5
        loose = 6 * max(tolerance, 1e-3) * space.level / thinned
        return _Screen(tilted, weight.T @ tilted, torch.zeros_like(norm.weight) if bias is None else bias, loose)


@torch.no_grad()
def grow_prefixes(
    net: TextTransformer, cells: Cells, space: RowSpace, tolerance: float, most: int, rng: torch.Generator
) -> list[list[int]]:
    """The longest texts all of whose prefixes fit: what the feed-forward part of the first block reads of each token
    lies in the row space of its gradient. At most the `most` best are followed."""
    block = net.h[0]
    assert isinstance(block, Block)
    screen = _Screen.of(block, space, tolerance, rng)
    heads = block.attn.heads
    depth = space.width // heads
    weight, bias = linear_weight(block.attn.c_attn)
    alive: list[list[int]] = [[]]
    keys = values = torch.zeros(1, 0, heads, depth, device=weight.device)
    done: list[list[int]] = []
    for place in range(cells.places):
        tokens = cells.tokens[place]
        state = net.wte(tokens) + net.wpe.weight[place]
        parts = nn.functional.linear(block.ln_1(state), weight, bias).view(len(tokens), 3, heads, depth)
        query, key, value = parts.unbind(1)
        own = (query * key).sum(-1) / sqrt(depth)  # (tokens, heads)
        base = (state + screen.output_bias) @ screen.tilted
        size = (state - state.mean(1, keepdim=True)).norm(dim=1)
        fits: list[tuple[float, int, int]] = []
        step = max(1, _NUMBERS_AT_ONCE // max(1, len(tokens) * (space.width + heads * (place + 1))))
        for begin in range(0, len(alive), step):
            known_keys, known_values = keys[begin : begin + step], values[begin : begin + step]
            scores = torch.einsum("thd,alhd->athl", query, known_keys) / sqrt(depth)
            scores = torch.cat([scores, own.expand(len(known_keys), -1, -1)[..., None]], -1).softmax(-1)
            mixed = torch.einsum("athl,alhd->athd", scores[..., :-1], known_values) + scores[..., -1:] * value
            mixed = mixed.flatten(2)  # (prefixes, tokens, width)
            left = (base + mixed @ screen.through_output).norm(dim=2)
            near = (left < screen.loose * size).nonzero()
            if len(near):
                attended = block.attn.c_proj(mixed[near[:, 0], near[:, 1]])
                distance = space.distance(block.ln_2(state[near[:, 1]] + attended))
                good = distance < tolerance * space.level
                kept, far = near[good], distance[good]
                pairs = zip(far.tolist(), kept[:, 0].tolist(), kept[:, 1].tolist(), strict=True)
                fits += [(d, begin + prefix, token) for d, prefix, token in pairs]
        fits = sorted(fits)[:most]
        grown = {prefix for _, prefix, _ in fits}
        done += [prefix for number, prefix in enumerate(alive) if prefix and number not in grown]
        if not fits:
            alive = []
            break
        before = torch.tensor([prefix for _, prefix, _ in fits], device=keys.device)
        chosen = torch.tensor([token for _, _, token in fits], device=keys.device)
        keys = torch.cat([keys[before], key[chosen][:, None]], 1)
        values = torch.cat([values[before], value[chosen][:, None]], 1)
        alive = [[*alive[prefix], int(tokens[token])] for _, prefix, token in fits]
    return done + alive
