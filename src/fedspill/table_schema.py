"""TableSchema: how records of a table are encoded as numbers. Every party knows it, since every party encodes.

A record is a row x (columns,) of numbers that a network is fed. A field of it is a category (one column for each value,
of which one is 1) or a number (one column, shifted and scaled). The schema says which rows are records at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

NEAR = 0.319  # deviations within which a number counts as read: the convention of TabLeak (Vero et al. 2023)
SAME = 1e-3  # deviations within which numbers that are on no grid are the same
MOST_CODES = 128  # values of a number that are listed one by one


class TableField(ABC):
    """One field of a record: where it lies in a row, and which codes it may have there."""

    name: str

    @property
    @abstractmethod
    def places(self) -> tuple[int, ...]:
        """The columns of a row that encode it."""

    @property
    @abstractmethod
    def is_discrete(self) -> bool:
        """Whether its values lie apart from each other, so that a small error can be undone."""

    @abstractmethod
    def nearest(self, cells: Tensor) -> Tensor:
        """(n, places) for cells (n, places): the valid codes that are nearest."""

    @abstractmethod
    def codes(self) -> Tensor | None:
        """(values, places) all codes, where they are few; None for a number with many values."""

    @abstractmethod
    def spacing(self) -> float:
        """The largest error of a cell at which the nearest code is still the right one."""

    @abstractmethod
    def is_near(self, one: Tensor, other: Tensor) -> Tensor:
        """(n,) whether valid codes (n, places) stand for nearly the same value."""

    @abstractmethod
    def is_same(self, one: Tensor, other: Tensor) -> Tensor:
        """(n,) whether valid codes (n, places) stand for the same value."""

    @abstractmethod
    def typical(self, cells: Tensor) -> Tensor:
        """(places,) the code that is right most often among valid codes (n, places): the mode, or the median."""

    @abstractmethod
    def moved(self, to: Sequence[int]) -> TableField:
        """The same field with its columns at other places."""


@final
@dataclass(frozen=True)
class CategoryField(TableField):
    """One of several values, one-hot; that nothing is known is a value too."""

    name: str
    columns: tuple[int, ...]
    values: tuple[str, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return self.columns

    @property
    def is_discrete(self) -> bool:
        return True

    def nearest(self, cells: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(cells.argmax(1), len(self.columns)).to(cells)

    def codes(self) -> Tensor:
        return torch.eye(len(self.columns), dtype=torch.float64)

    def spacing(self) -> float:
        return 0.5

    def is_near(self, one: Tensor, other: Tensor) -> Tensor:
        return self.is_same(one, other)

    def is_same(self, one: Tensor, other: Tensor) -> Tensor:
        return one.argmax(1) == other.argmax(1)

    def typical(self, cells: Tensor) -> Tensor:
        return self.nearest(cells.double().mean(0, keepdim=True))[0]

    def moved(self, to: Sequence[int]) -> CategoryField:
        return replace(self, columns=tuple(to))


@final
@dataclass(frozen=True)
class NumberField(TableField):
    """A number, encoded as (value - shift) / scale; with a `step`, all values are whole multiples of it.

    `deviation` is that of the encoded values. Where a number may be missing, the column `missing` is then 1, and its
    own column 0.
    """

    name: str
    column: int
    shift: float = 0.0
    scale: float = 1.0
    step: float = 0.0
    low: float = -torch.inf
    high: float = torch.inf
    deviation: float = 1.0
    missing: int | None = None

    @property
    def places(self) -> tuple[int, ...]:
        return (self.column,) if self.missing is None else (self.column, self.missing)

    @property
    def is_discrete(self) -> bool:
        return self.step > 0

    @property
    def is_choice(self) -> bool:
        """Whether it is one of two values, such as yes and no: then near is not enough."""
        return self.missing is None and self._values() <= 2

    def _values(self) -> float:
        return round((self.high - self.low) / self.step) + 1 if self.step > 0 and self.high < torch.inf else torch.inf

    def nearest(self, cells: Tensor) -> Tensor:
        value = (cells[:, :1].double() * self.scale + self.shift).clamp(self.low, self.high)
        if self.step > 0:
            value = (value / self.step).round() * self.step
        code = ((value - self.shift) / self.scale).to(cells)
        if self.missing is None:
            return code
        absent = cells[:, 1:] > 0.5
        return torch.cat([torch.where(absent, 0.0, code), absent.to(cells)], 1)

    def codes(self) -> Tensor | None:
        if self.missing is not None or self._values() > MOST_CODES:
            return None
        values = torch.arange(self.low, self.high + self.step / 2, self.step, dtype=torch.float64)
        return ((values - self.shift) / self.scale)[:, None]

    def spacing(self) -> float:
        return self.step / abs(self.scale) / 2 if self.step > 0 else SAME * self.deviation

    def is_near(self, one: Tensor, other: Tensor) -> Tensor:
        if self.is_choice:
            return self.is_same(one, other)
        return self._within(one, other, max(NEAR * self.deviation, self.spacing()))

    def is_same(self, one: Tensor, other: Tensor) -> Tensor:
        return self._within(one, other, self.spacing())

    def typical(self, cells: Tensor) -> Tensor:
        known = cells.double() if self.missing is None else cells[cells[:, 1] < 0.5].double()
        if 2 * len(known) < len(cells):
            return torch.tensor([0.0, 1.0], dtype=torch.float64)
        code: Tensor = torch.zeros(len(self.places), dtype=torch.float64)
        code[0] = known[:, 0].mean() if self.is_choice else known[:, 0].median()
        return self.nearest(code[None])[0]

    def moved(self, to: Sequence[int]) -> NumberField:
        return replace(self, column=to[0], missing=to[1] if len(to) > 1 else None)

    def _within(self, one: Tensor, other: Tensor, room: float) -> Tensor:
        near = (one[:, 0].double() - other[:, 0].double()).abs() <= room
        return near if self.missing is None else near & ((one[:, 1] > 0.5) == (other[:, 1] > 0.5))


@final
@dataclass(frozen=True)
class TableSchema:
    """All fields of a record; together they have every column of a row once."""

    fields: tuple[TableField, ...]

    @property
    def width(self) -> int:
        return sum(len(field.places) for field in self.fields)

    def limits(self) -> tuple[float, float]:
        """The least and the largest number that an encoded record may hold, as far as ranges are known."""
        numbers = [field for field in self.fields if isinstance(field, NumberField)]
        ends = [(end - field.shift) / field.scale for field in numbers for end in (field.low, field.high)]
        known = [end for end in ends if abs(end) < torch.inf]
        return min([0.0, *known]), max([1.0, *known])

    def nearest(self, x: Tensor) -> Tensor:
        """(n, columns) the valid records nearest to rows x (n, columns), field by field."""
        found = torch.empty_like(x)
        for field in self.fields:
            found[:, field.places] = field.nearest(x[:, field.places])
        return found

    def are_near(self, one: Tensor, other: Tensor) -> Tensor:
        """(n, fields) which fields of records (n, columns) have nearly the same value."""
        return torch.stack([f.is_near(one[:, f.places], other[:, f.places]) for f in self.fields], 1)

    def are_same(self, one: Tensor, other: Tensor) -> Tensor:
        """(n, fields) which fields of records (n, columns) have the same value."""
        return torch.stack([f.is_same(one[:, f.places], other[:, f.places]) for f in self.fields], 1)

    def typical(self, x: Tensor) -> Tensor:
        """(columns,) the record of modes and medians of records x (n, columns)."""
        found = torch.zeros(x.shape[1], dtype=torch.float64)
        for field in self.fields:
            found[list(field.places)] = field.typical(x[:, field.places])
        return found

    def only(self, kept: Sequence[int]) -> TableSchema:
        """The schema of rows that have these columns only, in this order; fields that lost a column are left out."""
        place = {column: index for index, column in enumerate(kept)}
        whole = [field for field in self.fields if all(column in place for column in field.places)]
        return TableSchema(tuple(field.moved([place[column] for column in field.places]) for field in whole))
