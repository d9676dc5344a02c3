"""Digits: 1,797 handwritten digits of 8 x 8 in grey that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedspill.data.images import image_dataset
from fedspill.data.splits import split
from fedspill.dataset import Dataset, DataSource, Examples


@dataclass(frozen=True)
class Digits(DataSource):
    """Handwritten digits that need no files; the test share is taken of every class."""

    name = "digits"
    title = "Digits of scikit-learn"
    paper = "Alpaydin, Kaynak: Optical recognition of handwritten digits, 1998"
    source = "scikit-learn, which ships it"

    test_share: float = 0.2
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        bunch = load_digits()
        x = torch.from_numpy(bunch.images.astype(np.float32) / 16)[:, None]
        every = Examples(x, torch.from_numpy(bunch.target.astype(np.int64)))
        train, test = (every.take(torch.from_numpy(part)) for part in split(bunch.target, self.test_share))
        return image_dataset(self.name, tuple("0123456789"), train, test, normalize=self.normalize)
