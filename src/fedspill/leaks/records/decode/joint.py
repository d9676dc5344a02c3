"""Decodes all fields of a record together: fields that are certain fix the record's place in the row space, which makes
the others sharper.

A record is x = V q with few unknowns q, V (columns, r) the row space of the first layer's gradient. Categories and
small whole numbers are certain long before large ones are. They give q by least squares, from many more cells than
unknowns, and q gives every other cell again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.table_schema import TableSchema

ROUNDS = 3
CERTAIN = 8.0  # errors of a cell, of the size seen in the same record, that a code must be away from the next one
WELL_POSED = 1e-3  # least singular value of the cells by which q is found


@dataclass(frozen=True, eq=False)
class DecodedRecords:
    """Valid records (k, columns), how far the samples were from them, and whether every cell of them is certain."""

    rows: Tensor
    error: Tensor  # (k,) root mean square; NaN where no cell is on a grid
    certain: Tensor  # (k,) bool


def decode(x: Tensor, schema: TableSchema, basis: Tensor | None = None, *, growing: bool = False) -> DecodedRecords:
    """The valid records nearest to samples x (k, columns) in float64, sharpened by the row space where it is known.

    `growing`: errors grow with what a column holds, so that cells that hold nothing say nothing of their size.
    """
    decoded = [_one(row, schema, basis, growing) for row in x]
    if not decoded:
        return DecodedRecords(x, x.new_zeros(0), torch.zeros(0, dtype=torch.bool))
    rows, errors, certain = zip(*decoded, strict=True)
    return DecodedRecords(torch.stack(rows), torch.tensor(errors), torch.tensor(certain))


def _one(x: Tensor, schema: TableSchema, basis: Tensor | None, growing: bool) -> tuple[Tensor, float, bool]:
    discrete, spacing = _cells(schema, len(x))
    choices = discrete & (spacing >= 0.1)
    for _ in range(ROUNDS if basis is not None else 1):
        code = schema.nearest(x[None])[0]
        if not bool(choices.any()):
            return code, torch.nan, False
        held = choices & (code != 0)
        error = float((x - code)[held if growing and bool(held.any()) else choices].square().mean().sqrt())
        room = CERTAIN * error * x.abs().clamp_min(1)
        if basis is None:
            break
        known = discrete & (spacing > room) & ((x - code).abs() < spacing / 2)
        cells = basis[known]
        if len(cells) < basis.shape[1] or float(torch.linalg.svdvals(cells)[-1]) < WELL_POSED:
            break
        x = basis @ torch.linalg.lstsq(cells, code[known][:, None]).solution[:, 0]
    off = torch.where(discrete, (x - code).abs(), torch.zeros_like(x))
    return code, error, bool(((spacing > room) & (off < spacing / 2)).all())


def _cells(schema: TableSchema, width: int) -> tuple[Tensor, Tensor]:
    """(columns,) whether a cell is on a grid, and the largest error at which its code is still the right one."""
    discrete, spacing = torch.zeros(width, dtype=torch.bool), torch.zeros(width, dtype=torch.float64)
    for field in schema.fields:
        places = list(field.places)
        discrete[places], spacing[places] = field.is_discrete, field.spacing()
    return discrete, spacing
