"""FER-2013: 35,887 faces of 48 x 48 in grey with one of seven expressions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import first_of, read_npz, refusing
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.splits import part_note
from fedspill.data.tables import parse_numbers, read_csv
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

CLASSES = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
USAGES = ("Training", "PublicTest", "PrivateTest")
PIXELS = 48 * 48
ORIGINAL = 35_887


@dataclass(frozen=True)
class Fer2013(DataSource):
    """Facial expressions; Kaggle's training images to train, its public and private test images to test."""

    name = "fer2013"
    title = "FER-2013 facial expressions"
    paper = "Goodfellow et al.: Challenges in representation learning, 2013"
    folder = "fer2013"
    source = "www.kaggle.com/datasets/deadskull7/fer2013 (the file fer2013.csv of Kaggle's 2013 challenge)"

    public_in_train: bool = False  # 32,298 training images, as the Decaf paper has, instead of 28,709
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        csv, npz = first_of(folder, "fer2013.csv"), sorted(folder.glob("*.npz"))
        if csv is not None:
            x, y, usage = read_kaggle(csv)
            note = part_note(len(y), ORIGINAL)
        elif npz:
            x, y, usage, ambiguous = read_npz(
                npz[0],
                x=("uint8", ("n", 48, 48)),
                y=("integer", ("n",)),
                usage=("integer", ("n",)),
                label_ambiguous=("bool_", ("n",)),
            )
            x, y, usage = x[~ambiguous], y[~ambiguous], usage[~ambiguous]
            note = f"{part_note(len(y), ORIGINAL)} {int(ambiguous.sum())} with ambiguous labels were left out.".strip()
        else:
            raise self.missing(folder, ["fer2013.csv", "an npz file"])
        trains = usage <= int(self.public_in_train)
        train, test = image_examples(x[trains], y[trains]), image_examples(x[~trains], y[~trains])
        return image_dataset(self.name, CLASSES, train, test, normalize=self.normalize, note=note)


def read_kaggle(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any]]:
    """Images (n, 48, 48), labels (n,) and usages (n,) of Kaggle's fer2013.csv."""
    columns = read_csv(path, ["emotion", "pixels", "Usage"])
    pixels = parse_numbers(columns["pixels"], path, "a table with whole numbers in pixels")
    with refusing(path, f"a table with whole numbers in emotion and {', '.join(USAGES)} in Usage"):
        labels = np.array(columns["emotion"], dtype=np.int64)
        usages = np.array([USAGES.index(usage) for usage in columns["Usage"]])
    if pixels.shape[1] != PIXELS or pixels.min() < 0 or pixels.max() > 255:
        raise InputRefused(f"{path}: expected {PIXELS} pixels of 0 to 255 in every row, got {pixels.shape[1]}.")
    return pixels.astype(np.uint8).reshape(-1, 48, 48), labels, usages
