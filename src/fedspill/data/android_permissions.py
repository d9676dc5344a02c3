"""NATICUSdroid: which of 86 permissions 29,332 Android apps declare, and whether the app is malware."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspill.data.archives import first_of, read_text
from fedspill.data.splits import part_note, split
from fedspill.data.tables import parse_numbers, table_dataset, yes_or_no
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

PERMISSIONS = 86


@dataclass(frozen=True)
class AndroidPermissions(DataSource):
    """Android apps as rows of yes-or-no permissions."""

    name = "android-permissions"
    title = "NATICUSdroid Android permissions"
    paper = "Mathur et al.: NATICUSdroid: a malware detection framework for Android using permissions, 2021"
    folder = "android_permissions"
    source = "archive.ics.uci.edu/dataset/722 (data.csv)"

    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        path = first_of(folder, "data.csv", "naticusdroid_train20531.csv")
        if path is None:
            raise self.missing(folder, ["data.csv (plain or .gz)", "naticusdroid_train20531.csv.gz"])
        header, *lines = [*read_text(path).splitlines(), ""]
        columns = tuple(header.split(","))
        first = int(columns[0] == "index")
        if len(columns) != first + PERMISSIONS + 1 or columns[-1] != "Result":
            raise InputRefused(f"{path}: expected {PERMISSIONS} permissions and Result, got {len(columns)} columns.")
        rows = [line for line in lines if line]
        table = parse_numbers(rows, path, "a table of 0 and 1", delimiter=",")[:, first:]
        if table.shape[1] != PERMISSIONS + 1 or not np.isin(table, (0, 1)).all():
            raise InputRefused(f"{path}: expected 0 or 1 for every permission and Result of every app.")
        labels = table[:, -1]
        return table_dataset(
            self.name,
            ("benign", "malware"),
            yes_or_no(table[:, :-1], columns[first:-1]),
            labels,
            split(labels, self.test_share),
            note=part_note(len(labels), 29_332, "apps"),
        )
