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
AT_ONCE = 4_096  # states, so that memory stays small
MOST_STATES = 100_000  # choices that are followed at once; a space with more holds too many records to tell apart
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

    @property
    def is_number(self) -> bool:
        """Whether it is a number with many values, which may stay open where they would be too many to follow."""
        return self.codes.shape[1] == 1 and len(self.codes) > 2


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
        few, dimensions = states[:TRIED_STATES], free.shape[1]
        step = min((_Step.of(field, free) for field in left), key=lambda one: one.growth(few, dimensions))
        left = [field for field in left if field is not step.field]
        children = step.all_children(states)
        if children is not None:
            states, free = children, step.still_free
        elif not step.field.is_number:
            raise CannotRecover(f"the row space of {size} dimensions holds too many records to tell apart")
    return _confirmed(states, basis, schema)


@dataclass(frozen=True, eq=False)
class _Step:
    """What fixing one field does, the same for all states: the directions that it takes, and those that stay free."""

    field: _Choices
    left: Tensor  # (places, rank) of the cells' directions
    moves: Tensor  # (rank, r) by how much a state moves for each
    still_free: Tensor  # (r, n)

    @staticmethod
    def of(field: _Choices, free: Tensor) -> _Step:
        left, sizes, right = torch.linalg.svd(field.cells @ free, full_matrices=True)
        rank = int((sizes > RESOLVED).sum())
        moves = (free @ right[:rank].T / sizes[:rank]).T
        return _Step(field, left[:, :rank], moves, free @ right[rank:].T)

    def reached(self, states: Tensor) -> Tensor:
        """(states, values) whether a state can reach a code."""
        apart = self.field.codes[None] - (states @ self.field.cells.T)[:, None]  # (states, values, places)
        missed: Tensor = (apart - apart @ self.left @ self.left.T).norm(dim=2)
        return missed < REACHED

    def growth(self, states: Tensor, dimensions: int) -> float:
        """By how many times the states would become more, for each dimension that is no longer free."""
        children = float(self.reached(states).sum()) / len(states)
        gained = dimensions - self.still_free.shape[1]
        return children if gained == 0 else children ** (1 / gained)

    def all_children(self, states: Tensor) -> Tensor | None:
        """The children of all states; None where they are too many."""
        parts, total = [], 0
        for part in torch.split(states, AT_ONCE):
            parts.append(self.children(part))
            total += len(parts[-1])
            if total > MOST_STATES:
                return None
        return torch.cat(parts)

    def children(self, states: Tensor) -> Tensor:
        """Every state with every code that it can reach."""
        state, value = self.reached(states).nonzero(as_tuple=True)
        apart = self.field.codes[value] - states[state] @ self.field.cells.T
        return states[state] + apart @ self.left @ self.moves


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
