"""Steps I and II of CAFE as linear least squares: sums over known batches, taken apart again (paper 001, Eqs. 7 and 8).

Step I: every round shows the sum of v_n over its batch, so the v_n solve a system whose matrix is the batch plan.
Step II: every round shows the sum of h_n v_n^T. With v known, the normal equations for all h at once are

    [ (V V^T) o (S^T S) ] H = sum_t diag(s_t) V M_t^T,      M_t the sum that round t shows, o the entrywise product,

definite as soon as S has full column rank and no v_n vanishes (Schur), or every batch's v are independent. The paper's
condition, fewer samples than outputs of the layer, is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedspill.errors import NotApplicable

_TINY = 1e-300
RIDGE = 1e-13  # relative; only keeps the factorisation from breaking down on rounding
_REFINED = 2
_NOISY = 1e-8  # share of noise in what is sought, from which on a ridge brings more than it costs


@dataclass(frozen=True, eq=False)
class Solved:
    """Values (n, d), their estimated standard error per coordinate (n,), and the relative residual of the system."""

    values: Tensor
    error: Tensor
    residual: float


def separate_sums(used: Tensor, sums: Tensor) -> Solved:
    """Step I: the rows (n, d) whose sums over the batches `used` (T, n) are `sums` (T, d), by least squares."""
    rounds, samples = used.shape
    if rounds < samples:
        raise NotApplicable(f"{rounds} rounds cannot take the sums over {samples} samples apart; {samples} are needed.")
    if is_circulant(used):
        return _by_fourier(used, sums)
    # Batches are short beside all samples, so the factorisation, N^3 / 3 operations, is what this takes.
    factor, broken = torch.linalg.cholesky_ex(torch.sparse.mm(used.T.to_sparse(), used))
    if int(broken) or float(factor.diagonal().min()) < 1e-7 * float(factor.diagonal().max()):
        raise NotApplicable("The batches do not tell all samples apart: their plan has no full column rank.")
    values = torch.cholesky_solve(used.T @ sums, factor)
    values += torch.cholesky_solve(used.T @ (sums - used @ values), factor)
    left = sums - used @ values
    noise = (left.square().sum() / max((rounds - samples) * sums.shape[1], 1)).sqrt()
    error = noise * torch.cholesky_inverse(factor).diagonal().sqrt()
    return Solved(values, error, float(left.norm() / sums.norm().clamp_min(_TINY)))


def is_circulant(used: Tensor) -> bool:
    """Whether every batch is the one before, shifted by one sample."""
    rounds, samples = used.shape
    return rounds == samples and torch.equal(used[1:], used[:-1].roll(1, dims=1))


def _by_fourier(used: Tensor, sums: Tensor) -> Solved:
    """A circulant system is a convolution: N log N instead of N^3 / 3."""
    spectrum = torch.fft.rfft(used[0]).conj()
    if float(spectrum.abs().min()) < 1e-9 * float(spectrum.abs().max()):
        raise NotApplicable("The batches do not tell all samples apart: their circulant plan is singular.")
    values = torch.fft.irfft(torch.fft.rfft(sums, dim=0) / spectrum[:, None], n=len(used), dim=0)
    return Solved(values, torch.zeros_like(values[:, 0]), 0.0)  # as many equations as unknowns: no residual to read


@final
class Products:
    """The normal equations for the a_n (n, da) in M_t = sum_n s_tn a_n c_n^T, of factors c (n, dc) and M_t (da, dc).

    Streams: each M_t is looked at once. Rows whose factor vanishes come out as zero, with an infinite error.
    """

    def __init__(self, used: Tensor, factors: Tensor, sums: Iterable[tuple[int, Tensor]]) -> None:
        norms = factors.norm(dim=1)
        self._alive = norms > 0
        self._norms = torch.where(self._alive, norms, 1)
        unit = factors / self._norms[:, None]
        right: Tensor | None = None
        energy, self._equations = unit.new_zeros(()), 0
        seen = []
        batches = torch.split(
            used.nonzero()[:, 1], (used != 0).sum(1).tolist()
        )  # once: a GPU is not to be asked every round
        for row, total in sums:
            total, batch = total.double(), batches[row]
            right = unit.new_zeros(len(unit), len(total)) if right is None else right
            right[batch] += used[row, batch, None] * (unit[batch] @ total.T)
            energy += total.square().sum()
            self._equations += total.numel()
            seen.append(row)
        if right is None:
            raise NotApplicable("No round shows the gradient of the first layer's weights.")
        self._energy = float(energy)
        counted = used[sorted(set(seen))]
        gram = (unit @ unit.T) * (counted.T @ counted)
        self._alive &= gram.diagonal() > 0
        gram[~self._alive], gram[:, ~self._alive] = 0, 0
        gram.diagonal()[~self._alive] = 1
        right[~self._alive] = 0
        self._gram, self._right = gram, right

    def entangled(self, ridge: float = RIDGE) -> Tensor:
        """How many times an error of the sums appears in each sample's values (n,): 1 where it stands alone."""
        spread = torch.cholesky_inverse(_factor(self._gram, ridge)).diagonal().clamp_min(0)
        return (spread * self._gram.diagonal()).sqrt()

    def solve(self, ridge: float = RIDGE) -> Solved:
        """By least squares; a ridge holds down what the batches leave open, refinement takes its bias off the rest."""
        factor = _factor(self._gram, ridge)
        scaled = torch.cholesky_solve(self._right, factor)
        for _ in range(_REFINED):
            scaled += torch.cholesky_solve(self._right - self._gram @ scaled, factor)
        return self._solved(scaled, factor)

    def solve_noisy(self) -> Solved:
        """As `solve`; where the residual shows noise, with the ridge that is best for its level (empirical Bayes)."""
        plain = self.solve()
        if not bool(self._alive.any()):
            return plain
        scaled = (plain.values * self._norms[:, None])[self._alive].square().mean(1)
        wrong = (plain.error * self._norms)[self._alive].square()
        signal = float((scaled - wrong).clamp(min=1e-3 * scaled).median())
        noise = plain.residual**2 * self._energy / max(self._equations - plain.values.numel(), 1)
        ridge = noise / max(signal * float(self._gram.diagonal()[self._alive].median()), _TINY)
        if not ridge > _NOISY:
            return plain
        factor = _factor(self._gram, min(ridge, 1e3))
        return self._solved(torch.cholesky_solve(self._right, factor), factor)

    def _solved(self, scaled: Tensor, factor: Tensor) -> Solved:
        explained = 2 * float((scaled * self._right).sum()) - float((scaled * (self._gram @ scaled)).sum())
        left = max(self._energy - explained, 0.0)
        noise = (left / max(self._equations - scaled.numel(), 1)) ** 0.5
        error = noise * torch.cholesky_inverse(factor).diagonal().clamp_min(0).sqrt() / self._norms
        values = scaled / self._norms[:, None]
        return Solved(values, torch.where(self._alive, error, torch.inf), (left / max(self._energy, _TINY)) ** 0.5)


def _factor(gram: Tensor, ridge: float) -> Tensor:
    """Cholesky, with as much more ridge as it takes: near-parallel factors in one batch make the system singular."""
    while ridge < 1e6:
        factor: Tensor
        factor, broken = torch.linalg.cholesky_ex(gram + torch.diag(ridge * gram.diagonal()))
        if not int(broken):
            return factor
        ridge *= 100
    raise NotApplicable("The system of the first layer's gradients is singular.")
