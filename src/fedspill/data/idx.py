"""Reads the idx format of MNIST and of the data sets made to replace it."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import LIMIT, first_of, read_file
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.splits import part_note
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes with that many dimensions."""
    data = read_file(path)
    start = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if data[:4] != magic:
        raise InputRefused(f"{path}: expected an idx file that begins with {magic.hex()}, got {data[:4].hex()}.")
    if len(data) < start:
        raise InputRefused(f"{path}: expected a header of {start} bytes, got {len(data)}.")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if math.prod(shape) > LIMIT or len(data) - start != math.prod(shape):
        raise InputRefused(f"{path}: expected {math.prod(shape):,} bytes for {shape}, got {len(data) - start:,}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_dataset(source: DataSource, folder: Path, classes: tuple[str, ...], normalize: bool) -> Dataset:
    """The four files of an MNIST-like data set of 60,000 and 10,000 images."""
    paths = [first_of(folder, name) for name in FILES]
    found = [path for path in paths if path is not None]
    if len(found) < len(FILES):
        absent = [name for name, path in zip(FILES, paths, strict=True) if path is None]
        raise source.missing(folder, [", ".join(absent) + " (each plain or .gz)"])
    x_train, x_test = read_idx(found[0], 3), read_idx(found[2], 3)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputRefused(f"{found[2]}: expected images of {x_train.shape[1:]}, got {x_test.shape[1:]}.")
    train, test = image_examples(x_train, read_idx(found[1], 1)), image_examples(x_test, read_idx(found[3], 1))
    note = part_note(len(train) + len(test), 70_000)
    return image_dataset(source.name, classes, train, test, normalize=normalize, note=note)
