"""Whitened gradient: how much of a record's own gradient a change holds, once what all records share is taken down.

The likelihood ratio of "this record's gradient was added" where the others' gradients are normal with the mean and the
covariance C of auxiliary gradients: s = (g - mean)^T C^-1 d / sqrt(g^T C^-1 g). By Woodbury only inner products are
needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedspill.leaks.membership.passive.sample_layers import RecordsAtLayer

_RIDGE = 0.1  # of the mean square norm of centred auxiliary gradients; research/membership.md


def whitened_products(
    records: Sequence[RecordsAtLayer], auxiliary: Sequence[RecordsAtLayer], changes: Sequence[Mapping[str, Tensor]]
) -> Tensor:
    """(records, changes) over all the layers; a change is what was added to the model, so descent is its negative."""
    m = len(auxiliary[0].inputs)
    crossed = torch.stack([one.gram(aux) for one, aux in zip(records, auxiliary, strict=True)]).sum(0)
    inner = torch.stack([aux.gram(aux) for aux in auxiliary]).sum(0)
    squares = torch.stack([one.squares() for one in records]).sum(0)
    with_changes = torch.stack([-sum(one.products(c) for one in records) for c in changes], 1)  # type: ignore[misc]
    aux_changes = torch.stack([-sum(aux.products(c) for aux in auxiliary) for c in changes], 1)  # type: ignore[misc]
    mean_row = inner.mean(0)
    centred = crossed - mean_row
    centred = centred - centred.mean(1, keepdim=True)
    core = inner - mean_row - mean_row[:, None] + inner.mean()
    square = squares - 2 * crossed.mean(1) + inner.mean()
    ridge = _RIDGE * float(core.diagonal().mean()) + 1e-30
    factor, failed = torch.linalg.cholesky_ex(core + ridge * torch.eye(m, dtype=core.dtype, device=core.device))
    if bool(failed.any()):
        return torch.zeros(len(squares), len(changes), dtype=core.dtype, device=core.device)
    explained = torch.linalg.solve_triangular(factor, centred.T, upper=False)
    moved = torch.linalg.solve_triangular(factor, aux_changes - aux_changes.mean(0), upper=False)
    own = (square - explained.square().sum(0)).clamp_min(1e-9 * float(square.mean()) + 1e-300)
    found: Tensor = (with_changes - aux_changes.mean(0) - explained.T @ moved) / own.sqrt()[:, None]
    return found.nan_to_num()


def without_others(table: Tensor) -> Tensor:
    """(records, senders) less the mean over the other senders; as it is where there are fewer than three."""
    senders = table.shape[1]
    if senders < 3:
        return table
    return table - (table.sum(1, keepdim=True) - table) / (senders - 1)


def without_labels(table: Tensor, labels: Tensor, known: slice) -> Tensor:
    """(records, senders) less the mean over known records (rows `known`) of the same label, shrunk to the mean of all.

    A known record does not count in its own mean: it would seem more usual than others are.
    """
    inside, mine = table[known], labels[known]
    classes = int(labels.max()) + 1
    member = torch.nn.functional.one_hot(mine, classes).to(table.dtype)
    overall = inside.mean(0)
    sums, counts = member.T @ (inside - overall), member.sum(0)
    own = torch.zeros_like(table)
    own[known] = inside - overall
    one = torch.zeros(len(table), dtype=table.dtype)
    one[known] = 1
    mean = (sums[labels] - own) / (counts[labels] - one + 1)[:, None]
    return table - overall - mean
