"""Step II of CAFE as linear least squares: sums of h v^T over known batches, taken apart (paper 001, Eq. 8).

Every round shows the sum of h_n v_n^T over its batch. With v known, the normal equations for all h at once are

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
from fedspill.leaks.inputs.vertical.inverse_diagonal import inverse_diagonal
from fedspill.leaks.inputs.vertical.separate_sums import overlaps

_TINY = 1e-300
RIDGE = 1e-13  # relative; only keeps the factorisation from breaking down on rounding
_REFINED = 2
_NOISY = 1e-8  # share of noise in what is sought, from which on a ridge brings more than it costs


@dataclass(frozen=True, eq=False)
class SeparatedProducts:
    """Values (n, d), and how far they can be trusted."""

    values: Tensor
    error: Tensor  # (n,) estimated standard error per coordinate; infinite where nothing is known
    most: Tensor  # (n,) what that error is at most, since it is an estimate itself
    entangled: Tensor  # (n,) factor by which an error of the sums is amplified, at most; 1 for a sample without overlap
    residual: float  # relative, of the system


@final
class ProductSystem:
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
        )  # computed once, since each question makes a GPU wait
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
        gram = (unit @ unit.T) * overlaps(used[sorted(set(seen))])
        self._alive &= gram.diagonal() > 0
        gram[~self._alive], gram[:, ~self._alive] = 0, 0
        gram.diagonal()[~self._alive] = 1
        right[~self._alive] = 0
        self._gram, self._right = gram, right

    def values(self, ridge: float = RIDGE) -> Tensor:
        """The values (n, da) of `solve` without their errors, which take longer to compute."""
        return self._refined(factorised(self._gram, ridge)) / self._norms[:, None]

    def solve(self, ridge: float = RIDGE) -> SeparatedProducts:
        """By least squares; a ridge keeps undetermined values small, and refinement removes its bias elsewhere."""
        factor = factorised(self._gram, ridge)
        return self._solved(self._refined(factor), factor)

    def solve_noisy(self) -> SeparatedProducts:
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
        factor = factorised(self._gram, min(ridge, 1e3))
        return self._solved(torch.cholesky_solve(self._right, factor), factor)

    def _refined(self, factor: Tensor) -> Tensor:
        scaled = torch.cholesky_solve(self._right, factor)
        for _ in range(_REFINED):
            scaled += torch.cholesky_solve(self._right - self._gram @ scaled, factor)
        return scaled

    def _solved(self, scaled: Tensor, factor: Tensor) -> SeparatedProducts:
        explained = 2 * float((scaled * self._right).sum()) - float((scaled * (self._gram @ scaled)).sum())
        left = max(self._energy - explained, 0.0)
        noise = (left / max(self._equations - scaled.numel(), 1)) ** 0.5
        variances = inverse_diagonal(factor)
        error, most = (
            torch.where(self._alive, noise * part.sqrt() / self._norms, torch.inf)
            for part in (variances.value, variances.most)
        )
        entangled = (variances.most * self._gram.diagonal()).sqrt()
        values = scaled / self._norms[:, None]
        return SeparatedProducts(values, error, most, entangled, (left / max(self._energy, _TINY)) ** 0.5)


def factorised(gram: Tensor, ridge: float) -> Tensor:
    """Cholesky, its ridge raised until it succeeds: near-parallel factors in one batch make the system singular."""
    while ridge < 1e6:
        factor: Tensor
        factor, broken = torch.linalg.cholesky_ex(gram + torch.diag(ridge * gram.diagonal()))
        if not int(broken):
            return factor
        ridge *= 100
    raise NotApplicable("The system of the first layer's gradients is singular.")
