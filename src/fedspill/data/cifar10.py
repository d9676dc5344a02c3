"""CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspill.data.cifar import read_cifar
from fedspill.dataset import Dataset, DataSource

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Cifar10(DataSource):
    """Small colour photographs in 10 classes, 50,000 to train and 10,000 to test."""

    name = "cifar10"
    title = "CIFAR-10"
    paper = "Krizhevsky: Learning multiple layers of features from tiny images, 2009"
    folder = "cifar10"
    source = "www.cs.toronto.edu/~kriz/cifar.html"

    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        return read_cifar(
            self,
            folder,
            inner="cifar-10-batches-bin",
            train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            test_file="test_batch.bin",
            label_bytes=1,
            pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1"),
            classes=CLASSES,
            normalize=self.normalize,
        )
