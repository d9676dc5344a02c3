"""How far errors spread in least squares: the diagonal of an inverse, from its Cholesky factor and random probes.

The inverse of A = L L^T has on its diagonal the squared lengths of the rows of L^-T. Entry n of L^-T z, z Gaussian, has
just that variance, whatever A is: the mean of k squares is the diagonal times a chi-squared number of k degrees over k,
so the error of the estimate is known beforehand. A probe takes N^2 operations, the whole inverse 2 N^3 / 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PROBES = 256  # a standard error is then known to 4.4 %
_SURE = 4.753  # standard deviations: one in a million is beyond


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The diagonal (n,) of an inverse as estimated, and what it is at most, but for one entry in a million."""

    value: Tensor
    most: Tensor


def inverse_diagonal(factor: Tensor, probes: int = PROBES) -> Diagonal:
    """Of the inverse of L L^T, for its lower factor L (n, n): n^2 operations a probe, exact from n probes on."""
    n = len(factor)
    if n <= probes:
        unit = torch.eye(n, dtype=factor.dtype, device=factor.device)
        exact = torch.linalg.solve_triangular(factor, unit, upper=False).square().sum(0)
        return Diagonal(exact, exact)
    rng = torch.Generator().manual_seed(0)  # whatever they are, probes know nothing of the system
    drawn = torch.randn(n, probes, generator=rng, dtype=factor.dtype).to(factor.device)
    value = torch.linalg.solve_triangular(factor.T, drawn, upper=True).square().mean(1)
    return Diagonal(value, value / least_mean(probes))


def least_mean(probes: int) -> float:
    """What a chi-squared number over its degrees of freedom exceeds, but for one in a million (Wilson and Hilferty)."""
    spread = 2 / (9 * probes)
    return float((1 - spread - _SURE * spread**0.5) ** 3)
