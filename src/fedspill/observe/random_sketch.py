"""The random sketch that every randomised decomposition here starts from (Halko et al. 2011).

What follows differs with the purpose, and stays with it: passes over the matrix until the gap between samples and noise
is clear (leaks/inputs/exact/gradient_rank.py), one pass for a noise level (row_spaces.py), none for a batch of matrices
whose weak directions are kept anyway (leaks/inputs/vertical/intersect_row_spaces.py).
"""

from __future__ import annotations

import torch
from torch import Tensor


def random_sketch(matrix: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """(..., rows, width) the float64 matrices (..., rows, columns) times one random matrix (columns, width).

    Its columns span nearly what the leading `width` columns of the singular value decomposition span.
    """
    drawn = torch.randn(matrix.shape[-1], width, generator=rng, dtype=torch.float64)
    return matrix @ drawn.to(matrix.device)
