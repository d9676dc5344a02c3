"""COP-MODE: 65,261 permission requests on Android phones, answered by their 93 users in a field study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspill.data.archives import first_of
from fedspill.data.cop_mode_table import COLUMNS, encode_requests
from fedspill.data.tables import read_csv
from fedspill.dataset import Dataset, DataSource


@dataclass(frozen=True)
class CopMode(DataSource):
    """Predicts whether a user grants an app a permission, from the phone's and the user's situation."""

    name = "cop-mode"
    title = "COP-MODE permission requests"
    paper = "Mendes, Brandao, Vilela, Beresford: Effect of user expectancy on mobile app privacy, PerCom 2022"
    folder = "cop_mode"
    source = "its authors on request (cop-mode.dei.uc.pt/dataset; the data set cop-mode-standin needs no files)"

    test_share: float = 0.2

    def read(self, folder: Path) -> Dataset:
        path = first_of(folder, "cop_mode.csv")
        if path is None:
            raise self.missing(folder, [f"cop_mode.csv (plain or .gz) with the columns {', '.join(COLUMNS)}"])
        return encode_requests(self.name, read_csv(path, COLUMNS), self.test_share, note="")
