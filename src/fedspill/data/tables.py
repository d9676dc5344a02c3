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


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Encoded rows x (n, columns), the name of every column, and which columns are one attribute's one-hot code."""

    x: NDArray[np.float32]
    columns: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


def read_csv(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """The needed columns of a comma-separated file with a header; every row must be complete."""
    with refusing(path, "comma-separated text"):
        rows = csv.reader(read_text(path).splitlines(), strict=True)
        header = next(rows, [])
        absent = [name for name in needed if name not in header]
        if absent:
            raise InputRefused(f"{path}: expected columns {', '.join(needed)}; {', '.join(absent)} not there.")
        places = [header.index(name) for name in needed]
        cells = []
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise InputRefused(f"{path}, line {number}: expected {len(header)} fields, got {len(row)}.")
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


def encode(numbers: Mapping[str, NDArray[Any]], categories: Mapping[str, Sequence[str]]) -> EncodedTable:
    """Numbers as they are, then every category as one column per value, values in alphabetical order."""
    blocks = [np.asarray(values, dtype=np.float32)[:, None] for values in numbers.values()]
    columns = list(numbers)
    groups = []
    for name, values in categories.items():
        known, codes = np.unique(np.asarray(values, dtype=np.str_), return_inverse=True)
        blocks.append(np.eye(len(known), dtype=np.float32)[codes])
        groups.append(tuple(range(len(columns), len(columns) + len(known))))
        columns += [f"{name}={value}" for value in known]
    return EncodedTable(np.concatenate(blocks, axis=1), tuple(columns), tuple(groups))


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
    )
    train, test = (every.take(torch.from_numpy(indices)) for indices in split)
    return Dataset(name, tuple(classes), train, test, table.columns, table.groups, note)
