"""HAM10000: 10,015 dermatoscopic images of skin lesions, here at 28 x 28 in colour, of seven diagnoses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import first_of, read_npz, read_text
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.splits import part_note, split
from fedspill.data.tables import parse_numbers, read_csv
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

CLASSES = ("akiec", "bcc", "bkl", "df", "nv", "vasc", "mel")  # the order of Kaggle's labels
PIXELS = 28 * 28 * 3


@dataclass(frozen=True)
class Ham10000(DataSource):
    """Skin lesions; no lesion has images on both sides of the split."""

    name = "ham10000"
    title = "HAM10000 skin lesions"
    paper = "Tschandl, Rosendahl, Kittler: The HAM10000 dataset, Scientific Data, 2018"
    folder = "ham10000"
    source = "www.kaggle.com/datasets/kmader/skin-cancer-mnist-ham10000"

    test_share: float = 0.3
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        csv, metadata = first_of(folder, "hmnist_28_28_RGB.csv"), first_of(folder, "HAM10000_metadata.csv")
        npz = sorted(folder.glob("*.npz"))
        if csv is not None and metadata is not None:
            x, y, lesions = read_kaggle(csv, metadata)
        elif npz:
            x, y, lesions = read_npz(
                npz[0], x=("uint8", ("n", 3, 28, 28)), y=("integer", ("n",)), lesion=("integer", ("n",))
            )
        else:
            raise self.missing(folder, ["hmnist_28_28_RGB.csv with HAM10000_metadata.csv", "an npz file"])
        parts = split(y, self.test_share, together=lesions)
        train, test = (image_examples(x[indices], y[indices]) for indices in parts)
        note = part_note(len(y), 10_015)
        return image_dataset(self.name, CLASSES, train, test, normalize=self.normalize, note=note)


def read_kaggle(path: Path, metadata: Path) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any]]:
    """Images (n, 3, 28, 28), labels (n,) and lesions (n,) of Kaggle's table, whose rows follow the metadata's."""
    lines = read_text(path).splitlines()
    table = parse_numbers(lines[1:], path, "a table of whole numbers below one line of names", delimiter=",")
    if table.shape[1] != PIXELS + 1 or table[:, :-1].min() < 0 or table[:, :-1].max() > 255:
        raise InputRefused(f"{path}: expected {PIXELS} pixels of 0 to 255 and a label, got {table.shape[1]} columns.")
    described = read_csv(metadata, ["lesion_id", "dx"])
    labels = table[:, -1]
    if described["dx"] != [CLASSES[label] if 0 <= label < len(CLASSES) else "" for label in labels.tolist()]:
        raise InputRefused(f"{path} and {metadata}: expected the same diagnoses in the same order.")
    pixels = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28, 3).transpose(0, 3, 1, 2)
    return pixels, labels, np.unique(described["lesion_id"], return_inverse=True)[1]
