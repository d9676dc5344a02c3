"""Reads what CelebA says about its 202,599 images: 40 attributes, the person, and the official split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import first_of, read_npz, read_text, refusing
from fedspill.data.tables import parse_numbers
from fedspill.dataset import DataSource
from fedspill.errors import InputRefused, UnknownName

ORIGINAL = 202_599


@dataclass(frozen=True, eq=False)
class Annotations:
    """One row per image: its file, attributes (n, 40) of 0 and 1, partition (n,) 0 to 2 and person (n,) if known."""

    files: list[str]
    names: tuple[str, ...]
    attributes: NDArray[np.uint8]
    partition: NDArray[Any]
    people: NDArray[Any] | None

    def column(self, name: str) -> NDArray[np.uint8]:
        if name not in self.names:
            raise UnknownName("attribute of CelebA", name, self.names)
        column: NDArray[np.uint8] = self.attributes[:, self.names.index(name)]
        return column


def read_annotations(source: DataSource, folder: Path) -> Annotations:
    """From the original text files, else from one npz with the attributes packed into bits."""
    listed, partition = first_of(folder, "list_attr_celeba.txt"), first_of(folder, "list_eval_partition.txt")
    npz = sorted(folder.glob("celeba_attributes*.npz"))
    if listed is not None and partition is not None:
        return _read_lists(listed, partition, first_of(folder, "identity_CelebA.txt"))
    if npz:
        packed, names, people, parts = read_npz(
            npz[0],
            attr_packed=("uint8", ("n", 5)),
            attr_names=("str_", (40,)),
            identity=("integer", ("n",)),
            partition=("integer", ("n",)),
        )
        files = [f"{number:06d}.jpg" for number in range(1, len(packed) + 1)]
        return Annotations(files, tuple(names.tolist()), np.unpackbits(packed, axis=1), parts, people)
    raise source.missing(folder, ["list_attr_celeba.txt with list_eval_partition.txt", "celeba_attributes*.npz"])


def _read_lists(listed: Path, partition: Path, identity: Path | None) -> Annotations:
    count, header, *lines = [*read_text(listed).splitlines(), "", ""]
    lines = [line for line in lines if line.strip()]
    if count.strip() != str(len(lines)):
        raise InputRefused(f"{listed}: its first line announces {count.strip()[:12]!r} images, got {len(lines):,}.")
    names = tuple(header.split())
    rows = [line.split(maxsplit=1) for line in lines]
    files = [row[0] for row in rows]
    signs = parse_numbers([row[-1] for row in rows], listed, "a list of files and whole numbers")
    if signs.shape[1] != len(names) or not np.isin(signs, (-1, 1)).all():
        raise InputRefused(f"{listed}: expected -1 or 1 for each of {len(names)} attributes, got {signs.shape[1]}.")
    people = None if identity is None else _read_numbers(identity, files)
    return Annotations(files, names, (signs > 0).astype(np.uint8), _read_numbers(partition, files), people)


def _read_numbers(path: Path, files: list[str]) -> NDArray[Any]:
    """The number that stands behind every file's name, for the same files in the same order."""
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    if [row[0] for row in rows] != files:
        raise InputRefused(f"{path}: expected the {len(files):,} files of the list of attributes, in its order.")
    with refusing(path, "a list of files and whole numbers"):
        return np.array([int(row[1]) if len(row) == 2 else "" for row in rows]).astype(np.int64)
