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
        return torch.unique(torch.cat(list(self.tokens.values())))  # type: ignore[no-any-return]

    def inside(self) -> Cells:
        """Without places behind a gap: texts have none."""
        return Cells({place: self.tokens[place] for place in range(self.places)})


def first_norm(net: TextTransformer) -> nn.LayerNorm:
    """The LayerNorm whose output the first layer reads."""
    norm = net.h[0].ln_1 if net.causal else net.ln_e
    assert isinstance(norm, nn.LayerNorm)
    return norm


@torch.no_grad()
def fitting_tokens(
    net: TextTransformer, space: RowSpace, tolerance: float, rng: torch.Generator, allowed: Tensor | None = None
) -> Cells:
    """The tokens within `tolerance` of the space, as a share of a random vector's distance; of `allowed` if given."""
    norm = first_norm(net)
    numbers = torch.arange(net.wte.num_embeddings, device=net.wte.weight.device) if allowed is None else allowed
    if net.wte.padding_idx is not None:
        numbers = numbers[numbers != net.wte.padding_idx]
    outside = space.outside(SCREENED, rng)
    scale, shift = norm.weight.double(), norm.bias.double()
    tilted, constant = (scale[:, None] * outside).float(), (shift @ outside).float()
    tokens = net.wte.weight[numbers]
    tokens = tokens - tokens.mean(1, keepdim=True)
    projected, variance = tokens @ tilted, tokens.square().mean(1)
    length = (space.width * (scale.square() + shift.square()).mean()).sqrt().float()
    length = length * (outside.shape[1] / max(space.free, 1)) ** 0.5
    found = {}
    for place in range(net.wpe.num_embeddings):
        position = net.wpe.weight[place] - net.wpe.weight[place].mean()
        spread = variance + position.square().mean() + 2 * (tokens @ position) / space.width + norm.eps
        screened = ((projected + position @ tilted) / spread.sqrt()[:, None] + constant).norm(dim=1) / length
        kept = (screened < max(2 * tolerance, 1e-3) * space.level).nonzero().flatten()
        if len(kept):
            inputs = norm(net.wte.weight[numbers[kept]] + net.wpe.weight[place])
            kept = kept[space.distance(inputs) < tolerance * space.level]
        if len(kept):
            found[place] = numbers[kept]
    return Cells(found)
