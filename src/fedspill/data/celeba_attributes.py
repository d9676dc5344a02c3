"""CelebA's attributes as a table: 202,599 rows of 40 yes-or-no properties of a face, one of them the label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspill.data.celeba import ORIGINAL, read_annotations
from fedspill.data.splits import part_note
from fedspill.data.tables import table_dataset, yes_or_no
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError


@dataclass(frozen=True)
class CelebaAttributes(DataSource):
    """Predicts one attribute from the others; people are the users, validation and test images the test rows."""

    name = "celeba-attributes"
    title = "CelebA attributes"
    paper = "Liu, Luo, Wang, Tang: Deep learning face attributes in the wild, ICCV 2015"
    folder = "celeba"
    source = "mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

    label: str = "Attractive"
    features: tuple[str, ...] = ()  # empty: all attributes but the label

    def read(self, folder: Path) -> Dataset:
        known = read_annotations(self, folder)
        labels = known.column(self.label)
        if self.label in self.features:
            raise UsageError(f"The label {self.label!r} of celeba-attributes must not be among its features.")
        columns = self.features or tuple(name for name in known.names if name != self.label)
        x = np.stack([known.column(name) for name in columns], axis=1).astype(np.float32)
        return table_dataset(
            self.name,
            (f"not {self.label}", self.label),
            yes_or_no(x, columns),
            labels,
            (np.flatnonzero(known.partition == 0), np.flatnonzero(known.partition != 0)),
            users=known.people,
            note=part_note(len(labels), ORIGINAL, "rows"),
        )
