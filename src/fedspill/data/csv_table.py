"""A table of your own from a CSV file with a header: numbers are scaled, text is one-hot, one column is the label."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_text, refusing
from fedspill.data.splits import split
from fedspill.data.tables import encode, read_csv, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused, UsageError

MOST_VALUES = 200  # different texts in one column; more are names or ids, not categories


@dataclass(frozen=True)
class CsvTable(DataSource):
    """Every column but `label` is a feature, unless `leave_out` names it; numbers have mean 0 and deviation 1."""

    name = "csv"
    title = "A CSV file of your own"
    source = "your own file, named by the option path"

    path: str = ""
    label: str = ""
    leave_out: tuple[str, ...] = ()
    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        if not self.path or not self.label:
            raise UsageError("The data set 'csv' needs the options path and label (the column to be learned).")
        path = Path(self.path)
        if not path.is_file():
            raise self.missing(path.parent, [path.name])
        with refusing(path, "comma-separated text"):
            header = next(csv.reader(read_text(path).splitlines()[:1], strict=True), [])
        if len(set(header)) != len(header):
            raise InputRefused(f"{path}: two columns have the same name.")
        for name in (self.label, *self.leave_out):
            if name not in header:
                raise InputRefused(f"{path}: there is no column {name!r}; there are {', '.join(header)[:200]}.")
        cells = read_csv(path, header)
        kept = [name for name in header if name != self.label and name not in self.leave_out]
        if not kept or not cells[self.label]:
            raise InputRefused(f"{path}: expected rows, and at least one column beside the label.")
        classes, labels = np.unique(np.asarray(cells[self.label], dtype=np.str_), return_inverse=True)
        parts = split(labels, self.test_share)
        numbers, categories = {}, {}
        for name in kept:
            values = _as_numbers(cells[name])
            if values is not None:
                numbers[name] = _scaled(values, parts[0])
            elif len(set(cells[name])) > MOST_VALUES:
                raise InputRefused(
                    f"{path}: column {name!r} has more than {MOST_VALUES} different texts.",
                    remedy="Leave it out with leave_out, or make categories of it.",
                )
            else:
                categories[name] = cells[name]
        table = encode(numbers, categories)
        return table_dataset(self.name, [str(value) for value in classes], table, labels, parts)


def _as_numbers(cells: list[str]) -> NDArray[np.float64] | None:
    """The column as finite numbers; None where it is text."""
    try:
        values = np.array([float(cell) for cell in cells])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _scaled(values: NDArray[np.float64], of: NDArray[np.int64]) -> NDArray[np.float64]:
    """Yes-or-no columns stay 0 and 1, since a scaled bit is only harder to read."""
    if np.isin(values, (0, 1)).all():
        return values
    scaled: NDArray[np.float64] = (values - values[of].mean()) / max(values[of].std(), 1e-6)
    return scaled
