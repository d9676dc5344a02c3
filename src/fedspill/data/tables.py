"""From columns of a table to examples: comma-separated text, scaled numbers, one-hot categories."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedspill.data.archives import read_text, refusing
from fedspill.dataset import Dataset, Examples
from fedspill.errors import InputRefused
from fedspill.table_schema import CategoryField, NumberField, TableField, TableSchema


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Encoded rows x (n, columns), the name of every column, and which columns are one attribute's one-hot code.

    `schema` says how to read a row; None where the columns are no fields of a record, such as an embedding's.
    """

    x: NDArray[np.float32]
    columns: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    schema: TableSchema | None = None


@dataclass(frozen=True, eq=False)
class ScaledNumbers:
    """A column of numbers (n,), NaN where one is missing, and how it is encoded: (value - shift) / scale."""

    values: NDArray[np.float64]
    shift: float = 0.0
    scale: float = 1.0

    @staticmethod
    def standardised(values: NDArray[Any], of: NDArray[np.int64]) -> ScaledNumbers:
        """To mean 0 and deviation 1 over the rows `of`."""
        numbers = np.asarray(values, dtype=np.float64)
        known = numbers[of][~np.isnan(numbers[of])]
        known = known if len(known) else np.zeros(1)
        return ScaledNumbers(numbers, float(known.mean()), max(float(known.std()), 1e-6))

    @staticmethod
    def ranged(values: NDArray[Any]) -> ScaledNumbers:
        """To the range from 0 to 1."""
        numbers = np.asarray(values, dtype=np.float64)
        return ScaledNumbers(numbers, float(numbers.min()), max(float(np.ptp(numbers)), 1e-12))

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.values)

    def encoded(self) -> NDArray[np.float32]:
        """(n,) with 0 where a number is missing."""
        return np.nan_to_num((self.values - self.shift) / self.scale).astype(np.float32)

    def field(self, name: str, column: int) -> NumberField:
        """What the schema says of it; a column for what is missing comes right behind it."""
        known = self.values[~self.missing]
        if not len(known):
            return NumberField(name, column, self.shift, self.scale, missing=column + 1)
        return NumberField(
            name,
            column,
            self.shift,
            self.scale,
            step=1.0 if bool((known == np.rint(known)).all()) else 0.0,
            low=float(known.min()),
            high=float(known.max()),
            deviation=max(float(known.std()), 1e-6) / abs(self.scale),
            missing=column + 1 if self.missing.any() else None,
        )


def read_csv(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """The needed columns of a comma-separated file with a header; every row but empty lines must be complete."""
    with refusing(path, "comma-separated text"):
        rows = csv.reader(read_text(path).splitlines(), strict=True)
        header = next(rows, [])
        absent = [name for name in needed if name not in header]
        if absent:
            raise InputRefused(f"{path}: expected columns {', '.join(needed)}; {', '.join(absent)} not there.")
        places = [header.index(name) for name in needed]
        cells = []
        for number, row in enumerate(rows, start=2):
            if not row:  # an empty line: editors leave one at the end
                continue
            if len(row) != len(header):
                raise InputRefused(
                    f"{path}, row {number}: expected {len(header)} fields, got {len(row)}.",
                    remedy="Put a cell that holds a comma in double quotes, and give each row as many cells as there "
                    "are column names.",
                )
            cells.append([row[place] for place in places])
    return (
        {name: list(column) for name, column in zip(needed, zip(*cells, strict=True), strict=True)}
        if cells
        else {name: [] for name in needed}
    )


def parse_numbers(
    lines: Sequence[str], path: Path, expected: str, *, delimiter: str | None = None
) -> NDArray[np.int64]:
    """Whole numbers (lines, columns); None: white space lies between them."""
    with refusing(path, expected), warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of an empty table, or of 1.5 where a whole number belongs
        try:
            return np.loadtxt(lines, dtype=np.int64, delimiter=delimiter, comments=None, ndmin=2)
        except Warning:
            raise ValueError from None


def encode(numbers: Mapping[str, ScaledNumbers], categories: Mapping[str, Sequence[str]]) -> EncodedTable:
    """Numbers, each with a yes-or-no column behind it if some are missing; then every category as one column per value,
    values in alphabetical order.
    """
    blocks: list[NDArray[np.float32]] = []
    columns: list[str] = []
    groups: list[tuple[int, ...]] = []
    fields: list[TableField] = []
    for name, own in numbers.items():
        fields.append(own.field(name, len(columns)))
        blocks.append(own.encoded()[:, None])
        columns.append(name)
        if own.missing.any():
            blocks.append(own.missing.astype(np.float32)[:, None])
            columns.append(f"{name} is missing")
    for name, values in categories.items():
        known, codes = np.unique(np.asarray(values, dtype=np.str_), return_inverse=True)
        blocks.append(np.eye(len(known), dtype=np.float32)[codes])
        groups.append(tuple(range(len(columns), len(columns) + len(known))))
        fields.append(CategoryField(name, groups[-1], tuple(known.tolist())))
        columns += [f"{name}={value}" for value in known]
    return EncodedTable(np.concatenate(blocks, axis=1), tuple(columns), tuple(groups), TableSchema(tuple(fields)))


def yes_or_no(x: NDArray[Any], columns: Sequence[str]) -> EncodedTable:
    """Columns of 0 and 1 (n, columns), as they are."""
    fields = [NumberField(name, place, step=1.0, low=0.0, high=1.0) for place, name in enumerate(columns)]
    return EncodedTable(x.astype(np.float32), tuple(columns), (), TableSchema(tuple(fields)))


def table_dataset(
    name: str,
    classes: Sequence[str],
    table: EncodedTable,
    labels: NDArray[Any],
    split: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    users: NDArray[Any] | None = None,
    note: str = "",
) -> Dataset:
    """A data set of table rows, shared out by the indices (train, test)."""
    every = Examples(
        torch.from_numpy(table.x),
        torch.from_numpy(labels.astype(np.int64)),
        None if users is None else torch.from_numpy(users.astype(np.int64)),
        schema=table.schema,
    )
    train, test = (every.take(torch.from_numpy(indices)) for indices in split)
    return Dataset(name, tuple(classes), train, test, table.columns, table.groups, note)
