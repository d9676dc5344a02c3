"""Generated people with a yes-or-no secret each: a small table for controls, which must need no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspill.data.splits import split
from fedspill.data.tables import ScaledNumbers, encode, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError


@dataclass(frozen=True)
class MadeUpPeople(DataSource):
    """Measured columns, a job and two yes-or-no columns; the label depends on them. Nobody of them is real."""

    name = "made-up-people"
    title = "Made-up people (generated)"
    paper = "fedspill"
    source = "nowhere: it is generated"

    people: int = 1500
    measures: int = 8
    yes_share: float = 0.5  # of the label
    seed: int = 0

    def read(self, folder: Path) -> Dataset:
        if self.people < 20 or self.seed < 0 or self.measures < 4 or not 0 < self.yes_share < 1:
            raise UsageError("Expected at least 20 people, 4 measures, a seed from 0 up and a share between 0 and 1.")
        rng = np.random.default_rng(self.seed)
        measured = rng.normal(size=(self.people, self.measures))
        job = rng.integers(4, size=self.people)
        secret, smoker = rng.random((2, self.people)) < np.array([[0.5], [0.3]])
        merit = measured[:, :4].sum(1) + job - 1.5 + 1.0 * secret - smoker + rng.normal(size=self.people)
        numbers = {f"measure{i}": ScaledNumbers(measured[:, i]) for i in range(self.measures)}
        for name, yes in (("smoker", smoker), ("secret", secret)):
            numbers[name] = ScaledNumbers(yes.astype(np.float64))
        table = encode(numbers, {"job": [f"job{j}" for j in job]})
        labels = (merit > np.quantile(merit, 1 - self.yes_share)).astype(np.int64)
        note = "Generated; no row is a real person's."
        return table_dataset(self.name, ("no", "yes"), table, labels, split(labels, 0.2), note=note)
