"""Fashion-MNIST: 70,000 articles of clothing of 28 x 28 in grey."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspill.data.idx import read_idx_dataset
from fedspill.dataset import Dataset, DataSource

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class FashionMnist(DataSource):
    """Articles of clothing, 60,000 to train and 10,000 to test."""

    name = "fashion-mnist"
    title = "Fashion-MNIST"
    paper = "Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking, 2017"
    folder = "fashion_mnist"
    source = "github.com/zalandoresearch/fashion-mnist"

    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        return read_idx_dataset(self, folder, CLASSES, self.normalize)
