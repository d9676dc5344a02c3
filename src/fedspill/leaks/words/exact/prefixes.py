"""Decoder: texts are grown token by token, because each token's state depends on the tokens before it alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.words.exact.effort import Effort
from fedspill.leaks.words.exact.growing import Growing, block_of
from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.leaks.words.exact.token_test import SCREENED, Cells
from fedspill.models.lora import linear_weight
from fedspill.models.text_transformer import Block, TextTransformer

_GATHERED, _DOUBLE = 200.0, 7.0  # operations that take as long as to gather a number, and as one product in float64


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


def _price(alive: Growing, space: RowSpace) -> float:
    """Operations that it takes to hold one token behind one prefix against the space: most of it is memory."""
    return float(space.width * (_GATHERED * (alive.keys[0].shape[1] + 2) + _DOUBLE * space.free))


@torch.no_grad()
def grow_prefixes(
    net: TextTransformer,
    cells: Cells,
    space: RowSpace,
    tolerance: float,
    most: int,
    effort: Effort,
    rng: torch.Generator,
) -> list[list[int]]:
    """The longest texts all of whose prefixes fit: what the feed-forward part of the first block reads of each token
    lies in the row space of its gradient. At most the `most` best are followed, as long as there is effort left.
    """
    block = block_of(net, 0)
    screen = _Screen.of(block, space, tolerance, rng)
    alive = Growing.begun(net)
    done: list[list[int]] = []
    for place in range(cells.places):
        behind = alive.try_next(cells.tokens[place])
        if not effort.spend(alive.operations(behind, screen.tilted.shape[1])):
            break
        base = (behind.state + screen.output_bias) @ screen.tilted
        size = (behind.state - behind.state.mean(1, keepdim=True)).norm(dim=1)
        pairs, distances = [], []
        for row, column, brought in alive.brought(behind, screen.through_output):
            part = slice(column, column + brought.shape[1])
            left = (base[part] + brought).norm(dim=2)
            near = (left < screen.loose * size[part]).nonzero() + torch.tensor([row, column], device=left.device)
            if len(near) and effort.spend(len(near) * _price(alive, space)):
                distance = space.distance(alive.attended(behind, *near.unbind(1)))
                good = distance < tolerance * space.level
                pairs.append(near[good])
                distances.append(distance[good])
        fits = torch.cat(pairs) if pairs else torch.zeros(0, 2, dtype=torch.int64)
        if len(fits):
            fits = fits[torch.cat(distances).argsort(stable=True)[:most]]
        lengthened = set(fits[:, 0].tolist())
        done += [text for number, text in enumerate(alive.texts) if text and number not in lengthened]
        if not len(fits):
            return done
        alive = alive.grown(behind, fits[:, 0], fits[:, 1])
    return done + [text for text in alive.texts if text]
