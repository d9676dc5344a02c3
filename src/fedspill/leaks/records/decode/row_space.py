"""Records in the row space of a first layer's change, by what makes a row a record; no label, loss or second layer.

Under SGD, with or without momentum, over any number of steps, the first layer moves by signals times inputs. So every
record that was trained on is x = V q, V (columns, r) the row space of the change, and the bias's change gives one
equation more, q . c = 1. A record has 1 in one column of each category and 0 in the others. Field by field, the codes
that this affine space can reach are followed; each field that is fixed leaves fewer dimensions, the same for every
choice, until nothing is free and all other columns can only confirm or refute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.table_schema import TableField, TableSchema

REACHED = 0.1  # distance from a code, between codes that are 1 apart, at which it is taken for that code
RESOLVED = 0.03  # singular value below which a direction does not show in the cells of a field
MOST_STATES = 20_000  # choices that are followed at once; a space with more holds too many records to tell apart
TRIED_STATES = 128  # by which the next field is chosen
CONFIRMED = 0.02  # distance from a code of a whole record that is fitted to all of its cells


@dataclass(frozen=True, eq=False)
class _Choices:
    """The codes (values, places) of a field, and the rows of the basis (places, r) that its cells are read by.

    Both are scaled, so that neighbouring codes are about 1 apart.
    """

    codes: Tensor
    cells: Tensor

    @staticmethod
    def of(field: TableField, basis: Tensor) -> _Choices | None:
        codes, scale = field.codes(), 0.5 / field.spacing()
        return None if codes is None else _Choices(scale * codes, scale * basis[list(field.places)])


def records_in_row_space(basis: Tensor, bias_equation: Tensor | None, schema: TableSchema) -> Tensor:
    """(k, columns) the records of the space `basis` (columns, r), as near as its rounding allows, in float64.

    `bias_equation` c (r,) holds for every record: q . c = 1. Raises CannotRecover where the space has too many.
    """
    size = basis.shape[1]
    left = [choices for field in schema.fields if (choices := _Choices.of(field, basis)) is not None]
    if not left:
        raise CannotRecover("the table has no column of categories or of yes and no, by which records could be told")
    states, free = basis.new_zeros(1, size), torch.eye(size, dtype=basis.dtype)
    if bias_equation is not None:
        states = (bias_equation / (bias_equation @ bias_equation))[None]
        free = torch.linalg.svd(bias_equation[None], full_matrices=True)[2][1:].T
    while left and len(states):
        chosen = min(left, key=lambda field: _growth(field, states[:TRIED_STATES], free))
        left = [field for field in left if field is not chosen]
        states, free = _fixed(chosen, states, free)
        if len(states) > MOST_STATES:
            raise CannotRecover(f"the row space of {size} dimensions holds too many records to tell apart")
    return _confirmed(states, basis, schema)


def _reach(field: _Choices, states: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(states, values) the distance of every code from what can be reached; how it is reached; what stays free."""
    left, sizes, right = torch.linalg.svd(field.cells @ free, full_matrices=True)
    rank = int((sizes > RESOLVED).sum())
    apart = field.codes[None] - (states @ field.cells.T)[:, None]  # (states, values, places)
    within = apart @ left[:, :rank]
    missed = (apart - within @ left[:, :rank].T).norm(dim=2)
    moves = (within / sizes[:rank]) @ (free @ right[:rank].T).T  # (states, values, r)
    return missed, moves, free @ right[rank:].T


def _growth(field: _Choices, states: Tensor, free: Tensor) -> float:
    """By how many times the states would become more, for each dimension that is no longer free."""
    missed, _, still_free = _reach(field, states, free)
    children = float((missed < REACHED).sum()) / len(states)
    gained = free.shape[1] - still_free.shape[1]
    return children if gained == 0 else children ** (1 / gained)


def _fixed(field: _Choices, states: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Every state with every code that it can reach, and the directions that remain."""
    missed, moves, still_free = _reach(field, states, free)
    state, value = (missed < REACHED).nonzero(as_tuple=True)
    return states[state] + moves[state, value], still_free


def _confirmed(states: Tensor, basis: Tensor, schema: TableSchema) -> Tensor:
    """The records that all cells with few codes agree with, fitted to these once more; each of them once."""
    listed = [field for field in schema.fields if field.codes() is not None]
    places = [place for field in listed for place in field.places]
    scale = torch.tensor([0.5 / field.spacing() for field in listed for _ in field.places], dtype=torch.float64)
    x = states @ basis.T
    valid = schema.nearest(x)
    left, sizes, right = torch.linalg.svd(scale[:, None] * basis[places], full_matrices=False)
    rank = int((sizes > RESOLVED).sum())
    # Only what the cells resolve is fitted to them; the rest of a state stays as it was.
    off = (valid - x)[:, places] * scale
    states = states + (off @ left[:, :rank] / sizes[:rank]) @ right[:rank]
    x = states @ basis.T
    good = (((x - valid)[:, places] * scale).abs() < CONFIRMED).all(1)
    inside = ((schema.nearest(x) - x).abs() < 0.5).all(1)
    found = x[good & inside]
    _, which = torch.unique(schema.nearest(found).round(decimals=4), dim=0, return_inverse=True)
    first = torch.zeros(int(which.max()) + 1 if len(which) else 0, dtype=torch.int64)
    first[which.flip(0)] = torch.arange(len(which)).flip(0)  # of records that are alike the first is kept
    return found[first]
