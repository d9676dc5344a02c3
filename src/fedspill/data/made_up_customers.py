"""Generated customers of a shop and of its bank: a small table for vertical federations, which must need no files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.splits import split
from fedspill.data.tables import ScaledNumbers, encode, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError

SHOP = ("visits", "basket", "discounts", "returned goods", "night orders", "baby goods", "alcohol", "pharmacy")
BANK = ("income", "balance", "rent", "cash", "overdrawn", "savings plan")


@dataclass(frozen=True)
class MadeUpCustomers(DataSource):
    """What a shop knows of people, what a bank does, and whether they pay back late. Nobody of them is real."""

    name = "made-up-customers"
    title = "Made-up customers of a shop and a bank (generated)"
    paper = "fedspill"
    source = "nowhere: it is generated"

    people: int = 2000
    late: float = 0.25  # share that pays back late: the label
    seed: int = 0

    def read(self, folder: Path) -> Dataset:
        if self.people < 40 or self.seed < 0 or not 0 < self.late < 1:
            raise UsageError("Expected at least 40 people, a seed from 0 up and a share between 0 and 1.")
        rng = np.random.default_rng(self.seed)
        means, age = rng.normal(size=(2, self.people))  # what both the shop's and the bank's figures hang on

        def measured(of_means: float, of_age: float) -> NDArray[np.float64]:
            own = rng.normal(size=self.people)
            mixed: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = of_means * means + of_age * age + own
            mixed /= math.sqrt(of_means**2 + of_age**2 + 1)
            return mixed

        numbers = {name: measured(*rng.normal(scale=0.8, size=2)) for name in (*SHOP, *BANK)}
        for name in ("night orders", "baby goods", "alcohol", "pharmacy", "overdrawn", "savings plan"):
            numbers[name] = (numbers[name] > rng.normal(scale=0.5)).astype(np.float64)
        district = [f"district {1 + int(place)}" for place in np.digitize(measured(1.0, 0.0), (-0.7, 0.0, 0.7))]
        risk = 1.2 * numbers["overdrawn"] - numbers["income"] - 0.7 * numbers["balance"] + 0.8 * numbers["discounts"]
        risk += 0.9 * numbers["night orders"] + 0.7 * numbers["alcohol"] - 0.5 * means + rng.normal(size=self.people)
        labels = (risk > np.quantile(risk, 1 - self.late)).astype(np.int64)
        table = encode({name: ScaledNumbers(own) for name, own in numbers.items()}, {"district": district})
        note = "Generated; no row is a real person's."
        return table_dataset(self.name, ("in time", "late"), table, labels, split(labels, 0.2), note=note)
