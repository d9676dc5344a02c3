"""MNIST: 70,000 handwritten digits of 28 x 28 in grey."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspill.data.idx import read_idx_dataset
from fedspill.dataset import Dataset, DataSource


@dataclass(frozen=True)
class Mnist(DataSource):
    """Handwritten digits, 60,000 to train and 10,000 to test."""

    name = "mnist"
    title = "MNIST handwritten digits"
    paper = "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998"
    folder = "mnist"
    source = "yann.lecun.com/exdb/mnist"

    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        return read_idx_dataset(self, folder, tuple("0123456789"), self.normalize)
