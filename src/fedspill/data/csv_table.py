"""A table of your own as comma-separated text: a label column, perhaps a user column, the rest are inputs."""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_text, refusing
from fedspill.data.csv_columns import is_missing, numbers_in, remark_on_numbers, why_too_many, why_unclear
from fedspill.data.splits import split
from fedspill.data.tables import ScaledNumbers, encode, read_csv, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import DataMissing, InputRefused, UsageError


@dataclass(frozen=True)
class CsvTable(DataSource):
    """Comma-separated text in UTF-8, with or without a byte order mark, plain or .gz, with a line of column names.

    Numbers get mean 0 and deviation 1, words become one column a value.

    A missing cell (empty, or ?, -, NA, n/a, NaN, null, None) among numbers is encoded as 0, with a yes-or-no column
    beside it; among words it is a value of its own. A column of numbers with cells that are neither is refused.
    Who a row belongs to (`user`) is no input; the partition `by-user` gives whole users to clients. Columns in
    `leave_out`, such as ids and names, are not read; those in `categories` are words even where they look like numbers.
    """

    name = "csv"
    title = "Your own table"
    source = "your own file, named by the option path"
    folder = "."

    path: str = "table.csv"  # below the data folder, below the working folder, or absolute
    label: str = "label"
    user: str | None = None
    leave_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
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
        notes = []
        labels = columns.pop(self.label)
        classes, y = self._classes(place, labels)
        unknown = sum(map(is_missing, labels))
        if unknown:
            notes.append(
                f"{unknown} of {len(labels)} cells of the column to learn, {self.label!r}, read as missing and count "
                "as a class."
            )
        users = None
        if self.user is not None:
            owners = columns.pop(self.user)
            _, users = np.unique(owners, return_inverse=True)
            nobody = sum(not cell.strip() for cell in owners)
            notes += [f"{nobody} of {len(owners)} rows have no {self.user!r} and count as one user."] if nobody else []
        numbers = {
            name: values
            for name, cells in columns.items()
            if name not in self.categories and (values := numbers_in(cells)) is not None
        }
        words = {name: cells for name, cells in columns.items() if name not in numbers}
        self._refuse_unreadable(place, words)
        notes += [said for name, values in numbers.items() if (said := remark_on_numbers(name, values))]
        parts = split(y, self.test_share)
        table = encode({name: _scaled(values, parts[0]) for name, values in numbers.items()}, words)
        return table_dataset(self.name, classes, table, y, parts, users=users, note=" ".join(notes))

    def _wanted(self, place: Path) -> list[str]:
        """All columns but those left out; whatever an option names must be there."""
        with refusing(place, "comma-separated text"):
            header = next(csv.reader(read_text(place).splitlines()[:1], strict=True), [])
        twice = [name for name, times in Counter(header).items() if times > 1]
        if twice:
            raise InputRefused(
                f"{place} has more than one column {twice[0]!r}.", remedy="Give each column a name of its own."
            )
        for option, names in self._named().items():
            for name in names:
                if name not in header:
                    raise _no_such_column(place, option, name, header)
        read_as = Counter(name for names in self._named().values() for name in names)
        torn = [name for name, times in read_as.items() if times > 1]
        if torn:
            uses = [option for option, names in self._named().items() if torn[0] in names]
            raise UsageError(f"{place}: column {torn[0]!r} is named by {' and by '.join(uses)}; it can be one of them.")
        kept = [name for name in header if name not in self.leave_out]
        if len(kept) <= 1 + (self.user is not None):
            raise UsageError(
                f"{place} has no column left to learn from: beside the label, the user and what is left out, there is "
                "none.",
                remedy="Take a column out of leave_out.",
            )
        return kept

    def _named(self) -> dict[str, tuple[str, ...]]:
        """Columns by the option that names them."""
        user = () if self.user is None else (self.user,)
        return {"label": (self.label,), "user": user, "leave_out": self.leave_out, "categories": self.categories}

    def _classes(self, place: Path, labels: list[str]) -> tuple[list[str], NDArray[np.int64]]:
        """The classes by name, and each row's."""
        empty = [row for row, cell in enumerate(labels, 2) if not cell.strip()]
        if empty:
            raise InputRefused(
                f"{place}: column {self.label!r}, which is to be learned, is empty in {len(empty)} of {len(labels)} "
                f"rows, the first of them row {empty[0]}.",
                remedy="Take these rows out of the table, or write a class of their own there.",
            )
        classes, y = np.unique(labels, return_inverse=True)
        if len(classes) < 2 or len(classes) > len(y) // 2:
            raise InputRefused(
                f"{place}: column {self.label!r} has {len(classes)} values in {len(y)} rows; Fedspill audits "
                "classification, where labels are a few classes. Regression is not supported.",
                remedy="Name the column of classes as the label, or turn numbers into ranges: low, high.",
            )
        return classes.tolist(), y.astype(np.int64)

    def _refuse_unreadable(self, place: Path, words: Mapping[str, list[str]]) -> None:
        """All columns that cannot be read are told at once."""
        wrong = []
        for name, cells in words.items():
            unclear = "" if name in self.categories else why_unclear(name, cells)
            if said := unclear or why_too_many(name, cells):
                wrong.append(said)
        if len(wrong) == 1:
            raise UsageError(f"{place}: {wrong[0]}")
        if wrong:
            lines = "".join(f"\n- {said}" for said in wrong)
            raise UsageError(f"{place}: {len(wrong)} columns cannot be read:{lines}")


def _no_such_column(place: Path, option: str, name: str, header: list[str]) -> UsageError:
    """What the option asked for, what is there, and what was probably meant."""
    other = next((sign for sign in (";", "\t", "|") if len(header) == 1 and sign in header[0]), None)
    near = difflib.get_close_matches(name, header, 1) or [one for one in header if one.strip().lower() == name.lower()]
    remedy = f"Name one of them as {option}." if option in ("label", "user") else f"Correct {option}."
    if near:
        remedy = f"Did you mean {near[0]!r}?"
    if other:
        remedy = f"They seem to be separated by {other!r}: save the table with commas."
    named = ", ".join(map(repr, header[:20])) + (", ..." if len(header) > 20 else "")
    return UsageError(f"{place} has no column {name!r}, which {option} names; its columns are {named}.", remedy=remedy)


def _scaled(values: NDArray[np.float64], of: NDArray[np.int64]) -> ScaledNumbers:
    """By mean and deviation of the rows `of`. Yes-or-no columns stay 0 and 1: a scaled bit is only harder to read."""
    known = values[~np.isnan(values)]
    return ScaledNumbers(values) if np.isin(known, (0, 1)).all() else ScaledNumbers.standardised(values, of)
