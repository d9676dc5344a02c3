"""Step I with far fewer rounds than samples: v_n lies in the row space of every gradient whose batch holds sample n.

The weight gradient of a round has rank at most K; the v_n of the batch span its row space, the h_n its column space.
Samples that share no other sample in all their batches are alone in the intersection, up to scale; the bias gradients
then give the scales. Three rounds a sample are enough where the batch plan separates all pairs
(federation/batches.py: "anti-twins"). Row spaces tell near-alike samples apart, since v depends on what other parties
and the label say; column spaces, in many more dimensions, stand more noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.attacks.cafe.linear import Products

_OVERSAMPLED = 16
_FLOOR = 3e-7  # singular values below this share of the largest are rounding of float32 gradients
_MOST_ROUNDS = 6  # rounds of a sample that are intersected; more bring little
_ROUNDING = 1e-7  # relative error of a bias gradient in float32
_MIXED = 3e-13  # rounding in the cosines: a direction may mix with one that is this near to it
_RIDGE = 1e-12
_NUMBERS = 1 << 25  # float64 values that a step may hold at a time


def row_space(total: Tensor, size: int, columns: int, rng: torch.Generator) -> Tensor:
    """The row space of a weight gradient (d1, d2) of a batch of `size`, by a randomised singular value decomposition.

    The basis (d2, columns) is orthonormal, padded with zeros, so that those of several rounds can be stacked. Weak
    directions stay in as long as they are more than rounding: a noisy one does no harm, a missing one loses a sample.
    """
    total = total.double()
    basis = total.new_zeros(total.shape[1], columns)
    if not bool(total.any()):
        return basis
    wide = min(total.shape[1], total.shape[0], size + _OVERSAMPLED)
    core = total
    if wide < min(total.shape):
        sketch = torch.randn(total.shape[1], wide, generator=rng, dtype=torch.float64).to(total.device)
        sketched = total @ sketch
        values, vectors = _eigen(sketched.T @ sketched)
        core = ((sketched @ vectors) / values.clamp_min(float(values[-1]) * 1e-15).sqrt()).T @ total
    values, vectors = _eigen(core @ core.T if len(core) <= core.shape[1] else core.T @ core)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    strength = values.sqrt()
    most = min(size, len(values))
    top = float(strength[0])
    rank = int((strength[:most] > _FLOOR * top).sum())
    right = core.T @ vectors[:, :rank] / strength[:rank] if len(core) <= core.shape[1] else vectors[:, :rank]
    basis[:, :rank] = right
    return basis


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and -vectors of symmetric matrices; GPU libraries give up on some that the CPU's solves."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:  # torch's LinAlgError is one
        values, vectors = torch.linalg.eigh(matrix.cpu())
    return values.to(matrix), vectors.to(matrix)


@dataclass(frozen=True, eq=False)
class Directions:
    """Unit rows (n, d2); how surely each lies in all row spaces of its sample, and how alone it is there."""

    rows: Tensor
    inside: Tensor  # (n,) mean squared cosine with the row spaces
    gap: Tensor  # (n,) how much worse the second-best direction is


def intersect(spaces: Sequence[Tensor], used: Tensor) -> Directions:
    """For every sample the direction that its rounds have in common. Row i of `used` (T, n) belongs to spaces[i]."""
    bases = torch.stack(list(spaces))  # (T, d2, k)
    samples, width = used.shape[1], bases.shape[1]
    order = used.to(torch.bool).to(torch.uint8).argsort(dim=0, descending=True, stable=True)[:_MOST_ROUNDS]
    many = used.to(torch.bool).sum(0).clamp_max(_MOST_ROUNDS)  # rounds of each sample
    rows = bases.new_zeros(samples, width)
    inside, gap = bases.new_zeros(samples), bases.new_zeros(samples)
    chunk = max(1, _NUMBERS // bases[0].numel())
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
        values, vectors = _eigen(common / (many[chosen] - 1)[:, None, None])
        found = (bases[first] @ vectors[:, :, -1:])[:, :, 0]
        gap[chosen] = values[:, -1] - values[:, -2] if values.shape[1] > 1 else values[:, -1]
        rows[chosen], inside[chosen] = _averaged(found, bases, order[:, chosen], many[chosen])
    return Directions(rows, inside, gap)


def from_columns(columns: Directions, used: Tensor, products: Iterable[tuple[int, Tensor]]) -> Directions:
    """Directions of v, of those of h: what the products are in terms of the latter."""
    turned = ((row, total.T) for row, total in products)
    rows = Products(used, columns.rows, turned).solve(_RIDGE).values
    return replace(columns, rows=rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300))


def _averaged(found: Tensor, bases: Tensor, order: Tensor, many: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of a direction's projections on all its row spaces, which halves the rounding, and how much is left."""
    total = torch.zeros_like(found)
    inside = torch.zeros_like(many, dtype=found.dtype)
    for place in range(len(order)):
        basis = bases[order[place]] * (many > place)[:, None, None]
        coordinates = (basis.transpose(1, 2) @ found[:, :, None])[:, :, 0]
        total += (basis @ coordinates[:, :, None])[:, :, 0]
        inside += coordinates.square().sum(1)
    return total / total.norm(dim=1, keepdim=True).clamp_min(1e-30), inside / many


def scaled(directions: Directions, used: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The v_n (n, d2): each direction times the number that makes all sums (T, d2) of the bias gradients right.

    Beside them (n,) how doubtful each direction was.

    A wrong direction would spoil every sum it is in, and through them everything. How far a direction lies outside its
    row spaces, and how near a second one comes to it, says how wrong it may be: the v_n of such samples (they left
    little or nothing in the weight gradients, or share their direction with others) are free to that extent, and what
    is left of the sums in the end is given to them.
    """
    doubt = (1 - directions.inside).clamp_min(0) + (_MIXED / directions.gap.clamp_min(_MIXED)).square()
    freedom = doubt / (_ROUNDING**2 * float(used.sum(1).mean()))
    spread = torch.eye(len(used), dtype=used.dtype, device=used.device) + (used * freedom) @ used.T
    factor = torch.linalg.cholesky(spread)
    plan, seen = (torch.linalg.solve_triangular(factor, part, upper=False) for part in (used, sums))
    # One unknown number a sample: M_t is a row (1, d2), and the factors are the directions.
    rows = ((row, total[None]) for row, total in enumerate(seen))
    found = directions.rows * Products(plan, directions.rows, rows).solve(_RIDGE).values
    left = torch.cholesky_solve(sums - used @ found, factor)
    return found + freedom[:, None] * (used.T @ left), doubt
