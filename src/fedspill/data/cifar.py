"""Reads CIFAR-10 and CIFAR-100: the original binary version, or part of it as npz; never the pickled Python version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_file, read_npz
from fedspill.data.images import image_dataset, image_examples
from fedspill.data.splits import part_note
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

PIXELS = 3 * 32 * 32


def read_cifar(
    source: DataSource,
    folder: Path,
    *,
    inner: str,
    train_files: tuple[str, ...],
    test_file: str,
    label_bytes: int,
    pickled: tuple[str, ...],
    classes: tuple[str, ...],
    normalize: bool,
) -> Dataset:
    """The binary files in `folder` or its folder `inner`, else an npz; of several label bytes the last one counts."""
    binary = next((place for place in (folder / inner, folder) if (place / train_files[0]).is_file()), None)
    npz = sorted(folder.glob("*.npz"))
    if binary is not None:
        absent = [name for name in (*train_files, test_file) if not (binary / name).is_file()]
        if absent:
            raise source.missing(binary, [", ".join(absent)])
        batches = [read_batch(binary / name, label_bytes) for name in train_files]
        x_train, y_train = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        x_test, y_test = read_batch(binary / test_file, label_bytes)
    elif npz:
        x_train, y_train, x_test, y_test = read_npz(
            npz[0],
            x_train=("uint8", ("n", 3, 32, 32)),
            y_train=("integer", ("n",)),
            x_test=("uint8", ("m", 3, 32, 32)),
            y_test=("integer", ("m",)),
        )
    else:
        refused = next((folder / name for name in pickled if (folder / name).exists()), None)
        if refused is not None:
            raise InputRefused(
                f"{refused} is the Python version of {source.title}: a pickle, which can run code when read.",
                remedy=f"Get the binary version ({inner}) from the same page, {source.source}.",
            )
        raise source.missing(folder, [f"{inner}/{train_files[0]} and the others of the binary version", "an npz file"])
    train, test = image_examples(x_train, y_train), image_examples(x_test, y_test)
    note = part_note(len(train) + len(test), 60_000)
    return image_dataset(source.name, classes, train, test, normalize=normalize, note=note)


def read_batch(path: Path, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels (n,) of one binary file."""
    record = label_bytes + PIXELS
    data = np.frombuffer(read_file(path), np.uint8)
    if len(data) == 0 or len(data) % record:
        raise InputRefused(f"{path}: expected a multiple of {record:,} bytes, got {len(data):,}.")
    rows = data.reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]
