"""Step I with far fewer rounds than samples: v_n lies in the row space of every gradient whose batch holds sample n.

The weight gradient of a round has rank at most K; the v_n of the batch span its row space, the h_n its column space.
If no second sample is in all batches of a sample, the intersection of its row spaces is one direction, that of its v;
the bias gradients then give the lengths. Three rounds a sample are enough where the batches separate all pairs
(federation/batches.py: "anti-twins"). Row spaces separate samples that look nearly alike to one party, since v also
depends on the other parties and the label; column spaces have many more dimensions and tolerate more noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.inputs.vertical.separate_products import ProductSystem
from fedspill.observe.random_sketch import random_sketch

_OVERSAMPLED = 16
_FLOOR = 3e-7  # singular values below this share of the largest are rounding of float32 gradients
_MOST_ROUNDS = 6  # rounds of a sample that are intersected; more bring little
_ROUNDING = 1e-7  # relative error of a bias gradient in float32
_MIXED = 3e-13  # rounding in the cosines; a direction mixes with any other that is this near to it
_RIDGE = 1e-12
_ENTANGLED = 1e3  # amplification of errors from which on samples count as not separable
_SHIFT = 1e-13  # from one, for inverse iteration
_BLOCK, _TURNS = 3, 10  # vectors in inverse iteration, and how often
_TINY = 1e-150  # its square is still a number
NUMBERS = 1 << 25  # float64 values that a step may hold at a time


def row_spaces(totals: Tensor, sizes: Tensor, columns: int, rng: torch.Generator) -> Tensor:
    """The row spaces of weight gradients (t, d1, d2) of batches of `sizes` (t,), by randomised singular values.

    The bases (t, d2, columns) are orthonormal and padded with zeros. Weak directions are kept as long as they exceed
    rounding, since a missing direction loses a sample while a noisy one does no harm.
    """
    core = totals.double()
    wide = columns + _OVERSAMPLED
    if wide < min(core.shape[1:]):
        sketched = random_sketch(core, wide, rng)
        values, vectors = _eigen(sketched.transpose(1, 2) @ sketched)
        floor = (1e-15 * values[:, -1:]).clamp_min(_TINY)
        core = ((sketched @ vectors) / values.clamp_min(floor).sqrt()[:, None]).transpose(1, 2) @ core
    tall = core.shape[1] > core.shape[2]
    values, vectors = _eigen(core.transpose(1, 2) @ core if tall else core @ core.transpose(1, 2))
    strength, vectors = values.flip(1).clamp_min(0).sqrt()[:, :columns], vectors.flip(2)[:, :, :columns]
    place = torch.arange(strength.shape[1], device=core.device)
    real = (strength > _FLOOR * strength[:, :1]) & (place < sizes.to(core.device)[:, None])
    rows = vectors if tall else core.transpose(1, 2) @ vectors / strength.clamp_min(_TINY)[:, None]
    rows = torch.where(real[:, None], rows, 0)
    return torch.nn.functional.pad(rows, (0, columns - rows.shape[2]))


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and -vectors of symmetric matrices, on the CPU: GPU libraries are slower, or fail to converge."""
    values, vectors = torch.linalg.eigh(matrix.cpu())
    return values.to(matrix), vectors.to(matrix)


@dataclass(frozen=True, eq=False)
class Directions:
    """Unit rows (n, d2), how well each lies in all row spaces of its sample, and how far the second-best one is."""

    rows: Tensor
    inside: Tensor  # (n,) mean squared cosine with the row spaces
    gap: Tensor  # (n,) how much worse the second-best direction is


def intersect(bases: Tensor, used: Tensor) -> Directions:
    """For every sample the direction that its rounds, of row spaces (T, d2, k), have in common; `used` is (T, n)."""
    samples, width = used.shape[1], bases.shape[1]
    order = used.to(torch.bool).to(torch.uint8).argsort(dim=0, descending=True, stable=True)[:_MOST_ROUNDS]
    many = used.to(torch.bool).sum(0).clamp_max(_MOST_ROUNDS)  # rounds of each sample
    rows = bases.new_zeros(samples, width)
    inside, gap = bases.new_zeros(samples), bases.new_zeros(samples)
    chunk = max(1, NUMBERS // bases[0].numel())
    for chosen in torch.split((many >= 2).nonzero().flatten(), chunk):
        # In coordinates of the first round's basis: the mean over the other rounds of the squared cosine.
        first = order[0, chosen]
        common = bases.new_zeros(len(chosen), bases.shape[2], bases.shape[2])
        for place in range(1, len(order)):
            there = many[chosen] > place
            pairs, which = torch.unique(
                torch.stack([first[there], order[place, chosen][there]]), dim=1, return_inverse=True
            )
            cosines = bases[pairs[1]].transpose(1, 2) @ bases[pairs[0]]
            common[there] += (cosines.transpose(1, 2) @ cosines)[which]
        leading, gap[chosen] = _leading(common / (many[chosen] - 1)[:, None, None])
        found = (bases[first] @ leading[:, :, None])[:, :, 0]
        rows[chosen], inside[chosen] = _averaged(found, bases, order[:, chosen], many[chosen])
    return Directions(rows, inside, gap)


def _leading(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The first eigenvectors (n, k) of matrices (n, k, k) that are at most one, and the gaps (n,) to the second value.

    What all rounds share has eigenvalue one, so inverse iteration at one on a few vectors finds it. A complete
    decomposition would take most of the time of Steps I and II.
    """
    n, k, _ = matrices.shape
    width = min(k, _BLOCK)
    factor = _definite(torch.eye(k, dtype=matrices.dtype, device=matrices.device) - matrices)
    rng = torch.Generator().manual_seed(0)  # any start does
    block = torch.randn(k, width, generator=rng, dtype=matrices.dtype).to(matrices).expand(n, k, width)
    # The factor is inverted once: GPU libraries would solve for a few vectors one matrix after the other.
    inverse = torch.linalg.solve_triangular(factor, torch.eye(k, dtype=factor.dtype, device=factor.device), upper=False)
    for _ in range(_TURNS):
        block = _orthonormal(inverse.transpose(1, 2) @ (inverse @ block))
    values, turn = _eigen(block.transpose(1, 2) @ matrices @ block)
    gap = values[:, -1] - values[:, -2] if width > 1 else values[:, -1]
    return (block @ turn[:, :, -1:])[:, :, 0], gap


def _definite(matrices: Tensor) -> Tensor:
    """Cholesky factors of matrices (n, k, k) that are definite but for rounding, each with the shift that it needs."""
    unit = torch.eye(matrices.shape[1], dtype=matrices.dtype, device=matrices.device)
    shift = torch.full_like(matrices[:, :1, :1], _SHIFT)
    while True:
        factors, broken = torch.linalg.cholesky_ex(matrices + shift * unit)
        failed = (broken > 0)[:, None, None] & (shift < 1)
        if not bool(failed.any()):
            return torch.where((broken > 0)[:, None, None], unit, factors)
        shift = torch.where(failed, 30 * shift, shift)


def _orthonormal(block: Tensor) -> Tensor:
    """Columns (n, k, few) made orthonormal one by one, each twice, since solving makes them nearly parallel."""
    done: list[Tensor] = []
    for column in block.unbind(2):
        for _ in range(2):
            column = column / column.norm(dim=1, keepdim=True).clamp_min(_TINY)
            for other in done:
                column = column - (other * column).sum(1, keepdim=True) * other
        done.append(column / column.norm(dim=1, keepdim=True).clamp_min(_TINY))
    return torch.stack(done, 2)


def rows_from_columns(columns: Directions, used: Tensor, products: Iterable[tuple[int, Tensor]]) -> Directions:
    """Directions of v from those of h: the products h v^T solved for v.

    Samples with parallel h can be separated only by the rounds that they are in; where these do not separate them,
    `inside` is set to zero, so that their directions count as doubtful.
    """
    system = ProductSystem(used, columns.rows, ((row, total.T) for row, total in products))
    solved = system.solve(_RIDGE)
    rows = solved.values
    inside = torch.where(solved.entangled > _ENTANGLED, 0, columns.inside)
    return replace(columns, rows=rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300), inside=inside)


def _averaged(found: Tensor, bases: Tensor, order: Tensor, many: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of a direction's projections on all its row spaces, which halves the rounding, and their mean square."""
    total = torch.zeros_like(found)
    inside = torch.zeros_like(many, dtype=found.dtype)
    for place in range(len(order)):
        basis = bases[order[place]] * (many > place)[:, None, None]
        coordinates = (basis.transpose(1, 2) @ found[:, :, None])[:, :, 0]
        total += (basis @ coordinates[:, :, None])[:, :, 0]
        inside += coordinates.square().sum(1)
    return total / total.norm(dim=1, keepdim=True).clamp_min(1e-30), inside / many


def scale_directions(directions: Directions, used: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The v_n (n, d2): each direction times the number that makes all sums (T, d2) of the bias gradients right.

    Also returns (n,) how doubtful each direction was.

    A wrong direction would disturb every sum that it is in, and through these all other samples. How far a direction
    lies outside its row spaces, and how near the second-best one is, bounds its error. To that extent a v_n may differ
    from its direction, and in the end takes its share of what the sums have left. That concerns samples which left
    little in the weight gradients, or share their direction with others.
    """
    doubt = (1 - directions.inside).clamp_min(0) + (_MIXED / directions.gap.clamp_min(_MIXED)).square()
    freedom = doubt / (_ROUNDING**2 * float(used.sum(1).mean()))
    covariance = torch.eye(len(used), dtype=used.dtype, device=used.device) + (used * freedom) @ used.T
    factor = torch.linalg.cholesky(covariance)
    whitened, seen = (torch.linalg.solve_triangular(factor, part, upper=False) for part in (used, sums))
    # One unknown number a sample: M_t is a row (1, d2), and the factors are the directions.
    rows = ((row, total[None]) for row, total in enumerate(seen))
    found = directions.rows * ProductSystem(whitened, directions.rows, rows).values(_RIDGE)
    left = torch.cholesky_solve(sums - used @ found, factor)
    return found + freedom[:, None] * (used.T @ left), doubt
