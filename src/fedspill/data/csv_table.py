"""A table of your own as comma-separated text: a label column, perhaps a user column, the rest are inputs."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_text, refusing
from fedspill.data.splits import split
from fedspill.data.tables import ScaledNumbers, encode, read_csv, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import DataMissing, InputRefused, UsageError

MISSING = frozenset({"", "?", "na", "nan", "null"})  # cells that stand for no number
MOST_VALUES = 50  # of a column of words; one with more is an id or free text, and must be left out by name


@dataclass(frozen=True)
class CsvTable(DataSource):
    """Comma-separated text in UTF-8, with or without a byte order mark, plain or .gz, with a line of column names.

    Numbers get mean 0 and deviation 1, words become one column a value.

    An empty cell (or ?, NA, NaN, null) among numbers is encoded as 0, with a yes-or-no column beside it; among words it
    is a value of its own.
    Who a row belongs to (`user`) is no input; the partition `by-user` gives whole users to clients. Columns in
    `leave_out`, such as ids and names, are not read.
    """

    name = "csv"
    title = "Your own table"
    source = "your own file, named by the option path"
    folder = "."

    path: str = "table.csv"  # below the data folder, below the working folder, or absolute
    label: str = "label"
    user: str | None = None
    leave_out: tuple[str, ...] = ()
    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        place = next((path for path in (folder / self.path, Path(self.path)) if path.is_file()), None)
        if place is None:
            raise DataMissing(
                f"There is no table {self.path!r}: expected comma-separated text in UTF-8 with a line of column names "
                f"as {folder / self.path} or {Path.cwd() / self.path}.",
                remedy="It is your own file, named by the option path: put it there, name its folder with --data-dir, "
                "or write its whole path into the plan: [data] path.",
            )
        columns = read_csv(place, self._wanted(place))
        classes, y = np.unique(columns.pop(self.label), return_inverse=True)
        if len(classes) < 2 or len(classes) > len(y) // 2:
            raise InputRefused(
                f"{place}: column {self.label!r} has {len(classes)} values in {len(y)} rows; Fedspill audits "
                "classification, where labels are a few classes. Regression is not supported."
            )
        users = None
        if self.user is not None:
            _, users = np.unique(columns.pop(self.user), return_inverse=True)
        parts = split(y, self.test_share)
        numbers: dict[str, ScaledNumbers] = {}
        words: dict[str, list[str]] = {}
        for name, cells in columns.items():
            values = _numbers(cells)
            if values is not None:
                numbers[name] = _scaled(values, parts[0])
            elif len(set(cells)) > MOST_VALUES:
                raise _too_many_words(place, name, cells)
            else:
                words[name] = cells
        table = encode(numbers, words)
        return table_dataset(self.name, classes.tolist(), table, y, parts, users=users)

    def _wanted(self, place: Path) -> list[str]:
        """All columns but those left out; the label and the user must be there."""
        with refusing(place, "comma-separated text"):
            header = next(csv.reader(read_text(place).splitlines()[:1], strict=True), [])
        for name in (self.label, self.user, *self.leave_out):
            if name is not None and name not in header:
                other = next((sign for sign in (";", "\t", "|") if len(header) == 1 and sign in header[0]), None)
                raise UsageError(
                    f"{place} has no column {name!r}; its columns are {', '.join(header[:20])}.",
                    remedy=f"They seem to be separated by {other!r}: save the table with commas." if other else "",
                )
        kept = [name for name in header if name not in self.leave_out]
        if len(kept) <= 1 + (self.user is not None):
            raise UsageError(f"{place} has no column left to learn from.")
        return kept


def _too_many_words(place: Path, name: str, cells: list[str]) -> UsageError:
    """What is wrong with a column that is neither of numbers nor of few words; cells are data and are not quoted."""
    odd = [line for line, cell in enumerate(cells, 2) if _numbers([cell, "0"]) is None]  # line 1 has the names
    if len(odd) < len(cells) / 2:
        return UsageError(
            f"{place}: column {name!r} is of numbers but for {len(odd)} of its cells, the first in row {odd[0]}.",
            remedy="Write a finite number there, or nothing: an empty cell counts as missing.",
        )
    return UsageError(
        f"{place}: column {name!r} is of words and has {len(set(cells))} values.",
        remedy=f'An id or a name is no input: leave_out = ["{name}"].',
    )


def _numbers(cells: list[str]) -> NDArray[np.float64] | None:
    """The column as finite numbers, NaN where one is missing; None where it is of words."""
    try:
        values = np.asarray(["nan" if cell.strip().lower() in MISSING else cell for cell in cells], dtype=np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).any() and not np.isinf(values).any() else None


def _scaled(values: NDArray[np.float64], of: NDArray[np.int64]) -> ScaledNumbers:
    """By mean and deviation of the rows `of`. Yes-or-no columns stay 0 and 1: a scaled bit is only harder to read."""
    known = values[~np.isnan(values)]
    return ScaledNumbers(values) if np.isin(known, (0, 1)).all() else ScaledNumbers.standardised(values, of)
