"""Location-30: where 5,010 people of Bangkok checked in, as 446 yes-or-no columns, clustered into 30 types."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspill.data.archives import read_file, refusing
from fedspill.data.splits import part_note, split
from fedspill.data.tables import parse_numbers, table_dataset, yes_or_no
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

COLUMNS = 446
UNPACKED = 256 * 2**20  # bytes; the original takes 4.5 million


@dataclass(frozen=True)
class Location30(DataSource):
    """Check-ins, one person per row; made for membership inference from Foursquare's Bangkok data."""

    name = "location30"
    title = "Location-30"
    paper = "Shokri, Stronati, Song, Shmatikov: Membership inference attacks, IEEE S&P 2017"
    folder = "location30"
    source = "github.com/privacytrustlab/datasets (dataset_location.tgz)"

    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        path = folder / "dataset_location.tgz"
        if not path.is_file():
            raise self.missing(folder, [path.name])
        lines = read_member(path).replace('"', "").splitlines()
        table = parse_numbers(lines, path, "a table of whole numbers", delimiter=",")
        if table.shape[1] != COLUMNS + 1 or not np.isin(table[:, 1:], (0, 1)).all():
            raise InputRefused(
                f"{path}: expected a label and {COLUMNS} columns of 0 or 1, got {table.shape[1]} columns."
            )
        labels = table[:, 0] - 1
        return table_dataset(
            self.name,
            [f"type {number}" for number in range(1, 31)],
            yes_or_no(table[:, 1:], [f"place {number}" for number in range(1, COLUMNS + 1)]),
            labels,
            split(labels, self.test_share),
            note=part_note(len(labels), 5_010, "rows"),
        )


def read_member(path: Path) -> str:
    """The text of the one file in a tgz, read in memory; nothing is written to disk."""
    data = io.BytesIO(read_file(path, UNPACKED))
    with refusing(path, "a tgz with one text file"):
        try:
            with tarfile.open(fileobj=data, mode="r:") as archive:
                member = next((entry for entry in archive if entry.isreg()), None)
                file = None if member is None else archive.extractfile(member)
                if member is None or file is None or member.size > UNPACKED:
                    raise ValueError
                return file.read().decode("utf-8")
        except tarfile.TarError:
            raise ValueError from None
