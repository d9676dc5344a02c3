"""Olivetti faces (also ORL): 400 photographs of 40 people in grey."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedspill.data.archives import read_npz
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.splits import split
from fedspill.dataset import Dataset, DataSource


@dataclass(frozen=True)
class Olivetti(DataSource):
    """Ten faces of each of 40 people; the person is the label."""

    name = "olivetti"
    title = "Olivetti faces"
    paper = "Samaria, Harter: Parameterisation of a stochastic model for human face identification, 1994"
    folder = "orl_olivetti_faces"
    source = "cam-orl.co.uk/facedatabase.html (arrays x and y, saved as npz)"

    size: Literal[64, 32] = 64
    test_share: float = 0.2
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        path = folder / ("olivetti_64x64.npz" if self.size == 64 else "orl_32x32.npz")
        if not path.is_file():
            raise self.missing(folder, [path.name])
        x, y = read_npz(path, x=("uint8", ("n", self.size, self.size)), y=("integer", ("n",)))
        classes = [f"person {number}" for number in range(1, 41)]
        train, test = (image_examples(x[part], y[part]) for part in split(y, self.test_share))
        return image_dataset(self.name, classes, train, test, normalize=self.normalize)
