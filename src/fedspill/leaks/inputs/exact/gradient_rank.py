"""The few directions that a gradient matrix has: its rank is the number of samples, its row space holds them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.observe.random_sketch import random_sketch

# Of the largest direction. What is smaller is nothing in single precision; where units sleep, the rounding of a message
# has few directions itself, and the step from it to zero is no gap between samples and rounding.
NOTHING = 1e-9
CLEAR = 30.0  # ratio of neighbouring singular values from which on the smaller one is rounding, not a sample


@dataclass(frozen=True, eq=False)
class TruncatedSvd:
    """A truncated singular value decomposition; `tail` is the first value left out over the last one kept."""

    left: Tensor  # (m, r)
    sizes: Tensor  # (r,)
    right: Tensor  # (d, r)
    tail: float

    @property
    def rank(self) -> int:
        return len(self.sizes)


def truncated_svd(matrix: Tensor, expected: int | None, rng: torch.Generator) -> TruncatedSvd | None:
    """The directions of a float64 matrix up to the widest gap in size, if that is clear, else as many as `expected`.

    None where no gap is clear and no number is expected.
    """
    most = min(matrix.shape)
    width = min(most, 16 if expected is None else expected + 8)
    while True:
        left, sizes, right = _randomised_svd(matrix, width, rng)
        rank = _widest_gap(sizes)
        clear = rank < len(sizes) and bool(sizes[rank - 1] > CLEAR * sizes[rank])
        if expected is not None or width == most or (clear and rank < width - 2):
            break
        width = min(2 * width, most)
    if not clear and expected is None:
        return None
    return _cut(left, sizes, right, rank if clear or expected is None else min(expected, most))


def room(matrix: Tensor) -> int:
    """How many directions a gradient could have: units that slept are rows or columns of zeros, and hold none."""
    return min(int((matrix != 0).any(1).sum()), int((matrix != 0).any(0).sum()))


def leading_directions(matrix: Tensor, rank: int, rng: torch.Generator) -> TruncatedSvd:
    """The `rank` largest directions."""
    return _cut(*_randomised_svd(matrix, min(*matrix.shape, rank + 8), rng), rank)


def _cut(left: Tensor, sizes: Tensor, right: Tensor, rank: int) -> TruncatedSvd:
    last = float(sizes[rank - 1])
    tail = float(sizes[rank]) / last if rank < len(sizes) and last > 0 else 0.0
    return TruncatedSvd(left[:, :rank], sizes[:rank], right[:, :rank], tail)


def _widest_gap(sizes: Tensor) -> int:
    relative = (sizes / sizes[0]).clamp_min(NOTHING)
    if len(sizes) < 2:
        return len(sizes)
    return int((relative[:-1] / relative[1:]).argmax()) + 1


def _randomised_svd(matrix: Tensor, width: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Randomised singular value decomposition (Halko et al. 2011); exact at full width.

    Every product with the matrix multiplies the ratio of noise to samples in the sketch by what it is in the matrix, so
    that three products are enough where the gap is clear; else there are seven.
    """
    if width == min(matrix.shape):
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        return left, sizes, right.T
    image = random_sketch(matrix, width, rng)
    for _ in range(3):
        rows = torch.linalg.qr((torch.linalg.qr(image)[0].T @ matrix).T)[0]
        image = matrix @ rows
        left, sizes, right = torch.linalg.svd(image, full_matrices=False)
        gap = _widest_gap(sizes)
        if gap < width and bool(sizes[gap - 1] > 1e3 * sizes[gap]):
            break
    return left, sizes, rows @ right.T
