"""Samples by the sum of several steps: the span condition at the first weights, in all resolved directions.

A step feeds the second layer something else than the step before, since the first layer has moved. The sum of the
steps has all of it in its row space: more directions than samples, each new one smaller by the learning rate. As many
as stand above the rounding of float32 are kept, and what the first step was fed lies in them nearly or exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.leaks.inputs.exact.leading_layers import LayerPair
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, find_roots, usual_scale
from fedspill.leaks.inputs.exact.two_linear_layers import SCALES, PairGradients

ABOVE_NOISE = 10.0  # times the rounding, for a direction to count as resolved
TOLERANCES = (1e-3, 0.01, 0.05, 0.15)  # tried in turn, when too few roots are found
ROUNDS = 2  # of starts, for each scale of them


def roots_of_sum(
    pair: LayerPair,
    gradients: PairGradients,
    samples: int,
    steps: tuple[int, int],
    rng: torch.Generator,
    *,
    scale: float | None = None,
) -> Tensor:
    """(k, d) at most `samples` roots. `steps`: for how many of them the two layers' directions are kept, at most."""
    left, sizes, right = _resolved(gradients.first, samples, steps[0])
    row_space = _resolved(gradients.second, samples, steps[1])[2]
    bias = None if gradients.first_bias is None else (left.T @ gradients.first_bias) / sizes
    condition = SpanCondition.of(pair.first.weight @ right, pair.first.bias, pair.between, row_space, bias)
    found = right.new_zeros(0, len(sizes))
    for tolerance in TOLERANCES:
        for share in SCALES:
            length = share * (scale or usual_scale(len(right)))
            more = find_roots(
                condition, samples, scale=length, tolerance=tolerance, rng=rng, spread=sizes, rounds=ROUNDS, known=found
            )
            found = more
            if len(found) >= samples:
                return found @ right.T
    return found @ right.T


def _resolved(matrix: Tensor, samples: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The directions of a gradient summed over steps that stand above what is left beyond all of them."""
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    most = min(samples * steps, len(sizes) - 2 * samples)
    noise = float(sizes[most]) if most > samples else float(sizes[0])
    rank = max(samples, int((sizes[: max(most, 0)] > ABOVE_NOISE * noise).sum()))
    return left[:, :rank], sizes[:rank], right[:rank].T
