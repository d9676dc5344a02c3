"""Which token may have stood where: those whose input to the first layer lies in the row space of its gradient.

That input is LayerNorm(token + position), a sum but for its length. So its part outside the space is a sum too, and all
pairs of tokens and positions are screened at the price of one product of matrices for the tokens. For the same reason
the inputs of T tokens at P places have rank T + P - 1 at most, however many pairs there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.words.exact.row_space import RowSpace
from fedspill.models.text_transformer import TextTransformer

SCREENED = 48  # directions that are looked at first


@dataclass(frozen=True, eq=False)
class Cells:
    """For each place the tokens that may have stood there, ascending."""

    tokens: Mapping[int, Tensor]

    @property
    def places(self) -> int:
        """The places from the first up to the first that no token fits."""
        return next((place for place in range(len(self.tokens) + 1) if place not in self.tokens), 0)

    @property
    def many(self) -> int:
        return sum(len(found) for found in self.tokens.values())

    def all_tokens(self) -> Tensor:
        if not self.tokens:
            return torch.zeros(0, dtype=torch.int64)
        found: Tensor = torch.unique(torch.cat(list(self.tokens.values())))
        return found

    def inside(self) -> Cells:
        """Without places behind a gap: texts have none."""
        return Cells({place: self.tokens[place] for place in range(self.places)})


def every_token(net: TextTransformer, allowed: Tensor | None = None) -> Cells:
    """Any token at any place; of `allowed` if given."""
    numbers = torch.arange(net.wte.num_embeddings) if allowed is None else allowed
    numbers = numbers.to(net.wte.weight.device)
    numbers = numbers[numbers != net.wte.padding_idx] if net.wte.padding_idx is not None else numbers
    return Cells(dict.fromkeys(range(net.wpe.num_embeddings), numbers))


def first_norm(net: TextTransformer) -> nn.LayerNorm:
    """The LayerNorm whose output the first layer reads."""
    norm = net.h[0].ln_1 if net.causal else net.ln_e
    assert isinstance(norm, nn.LayerNorm)
    return norm


@dataclass(frozen=True, eq=False)
class TokenTest:
    """How far all pairs of a token and a place lie from the space: in some directions, and exactly where it is near."""

    net: TextTransformer
    space: RowSpace
    numbers: Tensor  # (tokens,) that are tried
    screened: Tensor  # (places, tokens) squared distance in some directions, as if it were in all of them

    @staticmethod
    @torch.no_grad()
    def of(net: TextTransformer, space: RowSpace, rng: torch.Generator, allowed: Tensor | None = None) -> TokenTest:
        """For all tokens, or those of `allowed`."""
        norm = first_norm(net)
        numbers = torch.arange(net.wte.num_embeddings, device=net.wte.weight.device) if allowed is None else allowed
        if net.wte.padding_idx is not None:
            numbers = numbers[numbers != net.wte.padding_idx]
        outside = space.outside(SCREENED, rng)
        scale, shift = norm.weight.double(), norm.bias.double()
        tilted, constant = scale[:, None] * outside, shift @ outside
        tokens = _centred(net.wte.weight[numbers])
        places = _centred(net.wpe.weight)
        along_tokens, along_places = tokens.double() @ tilted, places.double() @ tilted
        spread = tokens.square().mean(1) + places.square().mean(1)[:, None] + 2 * (places @ tokens.T) / space.width
        deviation = (spread.double() + norm.eps).sqrt()
        # The square of (token + place) / deviation + constant, term by term: no table of all pairs and directions.
        square = along_tokens.square().sum(1) + along_places.square().sum(1)[:, None]
        square = (square + 2 * along_places @ along_tokens.T) / deviation.square()
        with_constant = 2 * ((along_tokens @ constant) + (along_places @ constant)[:, None]) / deviation
        square = square + with_constant + constant.square().sum()
        length = space.width * (scale.square() + shift.square()).mean() * outside.shape[1] / max(space.free, 1)
        return TokenTest(net, space, numbers, (square / length).clamp_min(0))

    @torch.no_grad()
    def within(self, tolerance: float, most: int) -> Cells:
        """The tokens within `tolerance` of the space, as a share of a random vector's distance; none if over `most`."""
        near = self.screened.sqrt() < max(2 * tolerance, 1e-3) * self.space.level
        if int(near.sum()) > 2 * most:
            return Cells({})
        found, norm = {}, first_norm(self.net)
        for place in near.any(1).nonzero().flatten().tolist():
            kept = self.numbers[near[place]]
            inputs = norm(self.net.wte.weight[kept] + self.net.wpe.weight[place])
            kept = kept[self.space.distance(inputs) < tolerance * self.space.level]
            if len(kept):
                found[place] = kept
        cells = Cells(found).inside()
        return cells if cells.many <= most else Cells({})


def _centred(rows: Tensor) -> Tensor:
    centred: Tensor = rows - rows.mean(1, keepdim=True)
    return centred
