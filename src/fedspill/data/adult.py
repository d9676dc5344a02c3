"""Adult: 48,842 people of the US census of 1994, and whether they earn more than 50,000 dollars."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedspill.data.archives import first_of, read_text, refusing
from fedspill.data.tables import ScaledNumbers, encode, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
CLASSES = ("<=50K", ">50K")


@dataclass(frozen=True)
class Adult(DataSource):
    """Census rows: numbers with mean 0 and deviation 1 over the training rows, categories one-hot."""

    name = "adult"
    title = "Adult census income"
    paper = "Kohavi: Scaling up the accuracy of naive-Bayes classifiers, KDD 1996"
    folder = "adult"
    source = "archive.ics.uci.edu/dataset/2/adult"

    missing_values: Literal["category", "drop"] = "category"  # "?" as a value of its own, or without these rows

    def read(self, folder: Path) -> Dataset:
        paths = [first_of(folder, name) for name in ("adult.data", "adult.test")]
        found = [path for path in paths if path is not None]
        if len(found) < 2:
            raise self.missing(folder, ["adult.data and adult.test (each plain or .gz)"])
        train, test = ([row for row in read_rows(path) if self._keeps(row)] for path in found)
        if not train:
            raise InputRefused(f"{found[0]}: expected rows, got none.")
        columns = dict(zip(COLUMNS, zip(*[row[:-1] for row in train + test], strict=True), strict=True))
        numbers = {}
        for name in NUMBERS:
            with refusing(found[0], f"a table with whole numbers in {name}"):
                values = np.array([int(cell) for cell in columns[name]], dtype=np.float64)
            numbers[name] = ScaledNumbers.standardised(values, np.arange(len(train)))
        table = encode(numbers, {name: columns[name] for name in COLUMNS if name not in NUMBERS})
        labels = np.array([CLASSES.index(row[-1]) for row in train + test])
        every = np.arange(len(labels))
        return table_dataset(self.name, CLASSES, table, labels, (every[: len(train)], every[len(train) :]))

    def _keeps(self, row: list[str]) -> bool:
        return self.missing_values == "category" or "?" not in row


def read_rows(path: Path) -> list[list[str]]:
    """The rows of adult.data or adult.test, the label last and without the full stop it has in adult.test."""
    rows = []
    with refusing(path, "comma-separated text"):
        for number, row in enumerate(csv.reader(read_text(path).splitlines(), skipinitialspace=True), start=1):
            if not row or row[0].startswith("|"):
                continue
            if len(row) != len(COLUMNS) + 1:
                raise InputRefused(f"{path}, line {number}: expected {len(COLUMNS) + 1} fields, got {len(row)}.")
            row[-1] = row[-1].removesuffix(".")
            if row[-1] not in CLASSES:
                raise InputRefused(f"{path}, line {number}: expected {' or '.join(CLASSES)} in the last field.")
            rows.append(row)
    return rows
