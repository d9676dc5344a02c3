"""Step I of CAFE as linear least squares: sums over known batches, taken apart again (paper 001, Eq. 7).

Every round shows the sum of v_n over its batch, so the v_n solve a linear system whose matrix says which round used
which sample. This design is the same for all parties and all passes, hence factored once: N^3 / 3 operations, or
N log N where it is circulant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.vertical.inverse_diagonal import inverse_diagonal

_TINY = 1e-300
_FEW = 0.1  # share of samples in a batch up to which products with the design are sparse
_ROUNDING = 1e-7  # relative error of a bias gradient in float32


@dataclass(frozen=True, eq=False)
class SeparatedSums:
    """What each sample gave to the sums, values (n, d), and its estimated standard error per coordinate (n,)."""

    values: Tensor
    error: Tensor
    residual: float  # relative, of the system


class BatchDesign(ABC):
    """Which rounds used which samples, factored so that sums over batches can be separated."""

    @abstractmethod
    def separate(self, sums: Tensor) -> SeparatedSums:
        """The rows (n, d) whose sums over the batches are `sums` (T, d), by least squares."""


def batch_design(used: Tensor) -> BatchDesign:
    """The design of rounds that used each sample so often, `used` (T, n)."""
    rounds, samples = used.shape
    if rounds < samples:
        raise NotApplicable(f"{rounds} rounds cannot take the sums over {samples} samples apart; {samples} are needed.")
    return CirculantDesign.of(used) if is_circulant(used) else FactoredDesign.of(used)


@final
@dataclass(frozen=True, eq=False)
class FactoredDesign(BatchDesign):
    """Any design of full column rank: the Cholesky factor of its normal equations, and the variances they give."""

    used: Tensor  # (T, n)
    factor: Tensor  # (n, n)
    variances: Tensor  # (n,) diagonal of the inverse of the normal equations

    @classmethod
    def of(cls, used: Tensor) -> FactoredDesign:
        factor, broken = torch.linalg.cholesky_ex(overlaps(used))
        if int(broken) or float(factor.diagonal().min()) < 1e-7 * float(factor.diagonal().max()):
            raise NotApplicable("The batches do not tell all samples apart: their plan has no full column rank.")
        return cls(used, factor, inverse_diagonal(factor).value)

    def separate(self, sums: Tensor) -> SeparatedSums:
        rounds, samples = self.used.shape
        values = torch.cholesky_solve(self.used.T @ sums, self.factor)
        values += torch.cholesky_solve(self.used.T @ (sums - self.used @ values), self.factor)
        left = sums - self.used @ values
        noise = (left.square().sum() / max((rounds - samples) * sums.shape[1], 1)).sqrt()
        residual = float(left.norm() / sums.norm().clamp_min(_TINY))
        return SeparatedSums(values, noise * self.variances.sqrt(), residual)


@final
@dataclass(frozen=True, eq=False)
class CirculantDesign(BatchDesign):
    """Every batch is the one before, shifted by one sample: the system is a convolution."""

    spectrum: Tensor  # (n // 2 + 1,) complex
    samples: int

    @classmethod
    def of(cls, used: Tensor) -> CirculantDesign:
        spectrum = torch.fft.rfft(used[0]).conj()
        if float(spectrum.abs().min()) < 1e-9 * float(spectrum.abs().max()):
            raise NotApplicable("The batches do not tell all samples apart: their circulant plan is singular.")
        return cls(spectrum, len(used))

    def separate(self, sums: Tensor) -> SeparatedSums:
        """With as many equations as unknowns no residual shows the noise, so it is taken as rounding alone."""
        turned = torch.fft.rfft(sums, dim=0) / self.spectrum[:, None]
        noise = _ROUNDING * sums.square().mean().sqrt()
        error = (noise * self.variance().sqrt()).expand(self.samples)
        return SeparatedSums(torch.fft.irfft(turned, n=self.samples, dim=0), error, 0.0)

    def variance(self) -> Tensor:
        """The diagonal of the normal equations' inverse, equal for all samples: the mean of its eigenvalues."""
        powers = self.spectrum.abs().square().reciprocal()
        mirrored = powers[1 : (self.samples + 1) // 2]  # a real design has each of these twice
        return (powers.sum() + mirrored.sum()) / self.samples


def overlaps(used: Tensor) -> Tensor:
    """How often two samples were in one batch, S^T S (n, n); by sparse products where batches are small."""
    few = float((used != 0).double().mean()) < _FEW
    return torch.sparse.mm(used.T.to_sparse(), used) if few else used.T @ used


def is_circulant(used: Tensor) -> bool:
    """Whether every batch is the one before, shifted by one sample."""
    rounds, samples = used.shape
    return rounds == samples and torch.equal(used[1:], used[:-1].roll(1, dims=1))
