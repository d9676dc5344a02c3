"""Decodes all fields of a record together: fields that are certain fix the record's place in the row space, which makes
the others sharper.

A record is x = V q with few unknowns q, V (columns, r) the row space of the first layer's gradient. Categories and
small whole numbers are certain long before large ones are. They move q as far as they tell it, and no further: what
they tell badly stays where it was found. So q gives every other cell again, with an error of its own, and a cell is
certain by an error that it had no part in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.table_schema import TableSchema

ROUNDS = 3
CERTAIN = 8.0  # errors of a cell, of the size seen in the same record, that a code must be away from the next one
ROUNDING = 3.5e-8  # standard error of a number in float32, relative, which no record and no row space escapes
OCCURS = 1e-9  # of a direction in a cell: less, and no record of the batch has anything there


@dataclass(frozen=True, eq=False)
class DecodedRecords:
    """Valid records (k, columns), and which cells of them are certain."""

    rows: Tensor
    cells: Tensor  # (k, columns) bool

    @property
    def certain(self) -> Tensor:
        """(k,) whether every cell of a record is certain."""
        return self.cells.all(1)


def decode(x: Tensor, schema: TableSchema, basis: Tensor | None = None, *, growing: bool = False) -> DecodedRecords:
    """The valid records nearest to samples x (k, columns) in float64, sharpened by the row space where it is known.

    `growing`: errors grow with what a column holds, so that cells that hold nothing say nothing of their size.
    """
    decoded = [_one(row, schema, basis, growing) for row in x]
    if not decoded:
        return DecodedRecords(x, torch.zeros(x.shape, dtype=torch.bool))
    rows, cells = zip(*decoded, strict=True)
    return DecodedRecords(torch.stack(rows), torch.stack(cells))


def _one(x: Tensor, schema: TableSchema, basis: Tensor | None, growing: bool) -> tuple[Tensor, Tensor]:
    discrete, spacing = _cells(schema, len(x))
    choices = discrete & (spacing >= 0.1)
    code = schema.nearest(x[None])[0]
    if not bool(choices.any()):
        return code, torch.zeros(len(x), dtype=torch.bool)
    held = choices & (code != 0)
    error = float((x - code)[held if growing and bool(held.any()) else choices].square().mean().sqrt())
    spread = error * x.abs().clamp_min(1)
    sure = (spacing > CERTAIN * spread) & ((x - code).abs() < spacing / 2)
    if basis is None:
        return code, sure
    for _ in range(ROUNDS):
        known = sure & discrete
        if int((known & _occurring(basis)).sum()) <= basis.shape[1]:
            break
        moved, spread = _moved_to(code, known, x, error, choices, basis)
        code = torch.where(known, code, schema.nearest(moved[None])[0])
        now = sure | ((spacing > CERTAIN * spread) & ((moved - code).abs() < spacing / 2))
        if bool((now == sure).all()):
            break
        sure = now
    return code, sure


def _moved_to(
    code: Tensor, known: Tensor, x: Tensor, error: float, choices: Tensor, basis: Tensor
) -> tuple[Tensor, Tensor]:
    """A record x (columns,) moved within the row space to the codes of its known cells, and the error of each cell.

    Known cells are as wrong as they disagree with each other, q as wrong as it made the choices.
    """
    cells, q = basis[known], x @ basis
    fitted = torch.linalg.lstsq(cells, code[known][:, None]).solution[:, 0]
    free = int((known & _occurring(basis)).sum()) - len(q)
    tight = max(float((code[known] - cells @ fitted).square().sum() / free) ** 0.5, ROUNDING)
    loose = max(error / float(basis[choices].square().sum(1).mean().sqrt()), tight)
    held = cells.T @ cells / tight**2 + torch.eye(len(q), dtype=x.dtype) / loose**2
    moved = basis @ torch.linalg.solve(held, cells.T @ code[known] / tight**2 + q / loose**2)
    return moved, ((basis @ torch.linalg.inv(held) * basis).sum(1) + (ROUNDING * x).square()).sqrt()


def _occurring(basis: Tensor) -> Tensor:
    """(columns,) whether any record has something there; categories that none has say nothing."""
    occurring: Tensor = basis.norm(dim=1) > OCCURS
    return occurring


def _cells(schema: TableSchema, width: int) -> tuple[Tensor, Tensor]:
    """(columns,) whether a cell is on a grid, and the largest error at which its code is still the right one."""
    discrete, spacing = torch.zeros(width, dtype=torch.bool), torch.zeros(width, dtype=torch.float64)
    for field in schema.fields:
        places = list(field.places)
        discrete[places], spacing[places] = field.is_discrete, field.spacing()
    return discrete, spacing
