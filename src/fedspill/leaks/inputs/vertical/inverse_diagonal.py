"""The variances of a least-squares solution: the diagonal of an inverse, from its Cholesky factor and random probes.

The inverse of A = L L^T has on its diagonal the squared lengths of the rows of L^-T. Entry n of L^-T z, z Gaussian, has
that number as its variance, whatever A is. So the mean of k such squares is the diagonal entry times a chi-squared
number of k degrees over k, and the error of the estimate is known beforehand. A probe takes N^2 operations, the whole
inverse 2 N^3 / 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PROBES = 256  # the root of an entry, a standard error, is then known to 4.4 %
_SURE = 4.753  # standard deviations that a normal number exceeds once in a million


@dataclass(frozen=True, eq=False)
class InverseDiagonal:
    """Estimates (n,) of the diagonal of an inverse, and upper bounds, which one entry in a million exceeds."""

    value: Tensor
    most: Tensor


def inverse_diagonal(factor: Tensor, probes: int = PROBES) -> InverseDiagonal:
    """Of the inverse of L L^T, for its lower factor L (n, n): n^2 operations a probe, exact from n probes on."""
    n = len(factor)
    if n <= probes:
        unit = torch.eye(n, dtype=factor.dtype, device=factor.device)
        exact = torch.linalg.solve_triangular(factor, unit, upper=False).square().sum(0)
        return InverseDiagonal(exact, exact)
    # A fixed seed serves every system: the estimate holds as long as the probes do not depend on the matrix.
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randn(n, probes, generator=rng, dtype=factor.dtype).to(factor.device)
    value = torch.linalg.solve_triangular(factor.T, drawn, upper=True).square().mean(1)
    return InverseDiagonal(value, value / least_chi_squared_mean(probes))


def least_chi_squared_mean(probes: int) -> float:
    """The quantile 1e-6 of a chi-squared number over its degrees of freedom, by Wilson and Hilferty's approximation."""
    variance = 2 / (9 * probes)  # of the cube root, which is nearly normal
    return float((1 - variance - _SURE * variance**0.5) ** 3)
