"""Adult shared out to 93 users of COP-MODE's sizes, for paper 004: a real table with users whose data differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedspill.data.adult import Adult
from fedspill.data.cop_mode_standin import sizes_of_users
from fedspill.dataset import Dataset, DataSource, Examples
from fedspill.errors import UnknownName, UsageError


@dataclass(frozen=True)
class AdultUsers(DataSource):
    """Adult's rows with users: sizes in the proportions of COP-MODE's, each user with its own mix of jobs and incomes.

    Columns that say the same as others are left out: the census weight marks single rows, the number of years repeats
    the degree, and the relationship (husband, wife) gives sex and marriage away.
    """

    name = "adult-users"
    title = "Adult census income, by user"
    paper = "004"
    folder = "adult"
    source = "archive.ics.uci.edu/dataset/2/adult"

    without: tuple[str, ...] = ("fnlwgt", "education-num", "relationship")
    skew: float = 0.5  # Dirichlet: how much alike users are; smaller is less
    seed: int = 0

    def read(self, folder: Path) -> Dataset:
        if self.skew <= 0 or self.seed < 0:
            raise UsageError(f"Expected skew > 0 and seed >= 0, got {self.skew} and {self.seed}.")
        adult = Adult(missing_values="drop").read(folder)
        known = {column.partition("=")[0] for column in adult.columns}
        for name in self.without:
            if name not in known:
                raise UnknownName("column of Adult", name, known)
        kept = [i for i, column in enumerate(adult.columns) if column.partition("=")[0] not in self.without]
        place = {column: index for index, column in enumerate(kept)}
        groups = tuple(tuple(place[i] for i in group) for group in adult.groups if group[0] in place)
        jobs = [i for i, column in enumerate(adult.columns) if column.startswith("occupation=")]
        mix = (adult.train.x[:, jobs].argmax(1) * 2 + adult.train.y).numpy()
        users = deal(mix, self.skew, np.random.default_rng(self.seed))
        assert adult.train.schema is not None
        schema = adult.train.schema.only(kept)
        nobody = torch.full((len(adult.test),), -1)
        train = Examples(adult.train.x[:, kept], adult.train.y, torch.from_numpy(users), schema=schema)
        test = Examples(adult.test.x[:, kept], adult.test.y, nobody, schema=schema)
        columns = tuple(adult.columns[i] for i in kept)
        return replace(adult, name=self.name, train=train, test=test, columns=columns, groups=groups)


def deal(groups: NDArray[np.int64], skew: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The user (n,) of every row: as many rows as COP-MODE's users have, scaled; groups (n,) lie unevenly with them."""
    sizes = sizes_of_users()
    wanted = np.maximum(np.rint(sizes * len(groups) / sizes.sum()), 1)
    habits = rng.dirichlet(np.full(groups.max() + 1, skew), len(wanted))  # (users, groups)
    frequency = np.bincount(groups, minlength=groups.max() + 1)
    # Users' wishes are fitted to what there is, rows and columns in turn; then each row goes to a user by its chances.
    table = habits * frequency
    for _ in range(200):
        table *= (wanted / table.sum(1))[:, None]
        table *= frequency / np.maximum(table.sum(0), 1e-300)
    users = np.empty(len(groups), np.int64)
    for group in range(len(frequency)):
        rows = rng.permutation(np.flatnonzero(groups == group))
        ends = np.rint(np.cumsum(table[:, group])).astype(np.int64)
        users[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=len(wanted) - 1)
    return users
