"""Yale faces: 165 photographs of 15 people at 32 x 32 in grey; extended: 2,412 of 38 people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_npz
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.matlab import read_matlab
from fedspill.data.splits import split
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

STRIPED = (76, 78)  # damaged rows of the extended set


@dataclass(frozen=True)
class Yale(DataSource):
    """Faces under changing light and expression; the person is the label."""

    name = "yale"
    title = "Yale faces"
    paper = "Belhumeur, Hespanha, Kriegman: Eigenfaces vs. Fisherfaces, 1997; Georghiades et al., 2001 (extended)"
    folder = "yale_faces"
    source = "www.cad.zju.edu.cn/home/dengcai/Data/FaceData.html (Yale_32x32.mat, YaleB_32x32.mat)"

    extended: bool = False
    test_share: float = 0.2
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        npz = folder / ("yaleB_32x32.npz" if self.extended else "yale_32x32.npz")
        mat = folder / ("YaleB_32x32.mat" if self.extended else "Yale_32x32.mat")
        if npz.is_file():
            x, y = read_npz(npz, x=("uint8", ("n", 32, 32)), y=("integer", ("n",)))
        elif mat.is_file():
            x, y = read_mat(mat)
        else:
            raise self.missing(folder, [npz.name, mat.name])
        if self.extended:
            x, y = np.delete(x, STRIPED, axis=0), np.delete(y, STRIPED)
        classes = [f"person {number}" for number in range(1, 39 if self.extended else 16)]
        train, test = (image_examples(x[part], y[part]) for part in split(y, self.test_share))
        note = "Two striped images of the original 2,414 were left out." if self.extended else ""
        return image_dataset(self.name, classes, train, test, normalize=self.normalize, note=note)


def read_mat(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images (n, 32, 32) and people (n,) from 0 of a MATLAB file; images lie column by column in rows of `fea`."""
    images, people = read_matlab(path, "fea", "gnd")
    if images.shape != (people.size, 1024):
        raise InputRefused(f"{path}: expected fea of shape (n, 1024) for n = {people.size} people, got {images.shape}.")
    if not ((images >= 0) & (images <= 255)).all() or not ((people >= 1) & (people <= 38)).all():
        raise InputRefused(f"{path}: expected pixels of 0 to 255 in fea, and people from 1 to at most 38 in gnd.")
    return images.astype(np.uint8).reshape(-1, 32, 32).transpose(0, 2, 1), people.ravel().astype(np.int64) - 1
