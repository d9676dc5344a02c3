"""CelebA's aligned photographs of faces, labelled with one of their attributes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from fedspill.data.archives import open_zip, read_file, read_member
from fedspill.data.celeba import ORIGINAL, read_annotations
from fedspill.data.images import decode_images, image_dataset, image_examples
from fedspill.data.splits import part_note, split
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError


@dataclass(frozen=True)
class CelebaImages(DataSource):
    """Faces; the official split where the images there have one, else a fifth of them, by person, to test."""

    name = "celeba-images"
    title = "CelebA faces"
    paper = "Liu, Luo, Wang, Tang: Deep learning face attributes in the wild, ICCV 2015"
    folder = "celeba"
    source = "mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

    label: str = "Attractive"
    size: int | None = 64  # the middle of the face, size x size; none: as they are
    limit: int | None = None  # the first so many images
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit must be at least 1, got {self.limit}.")
        images = folder / "img_align_celeba"
        archives = [*folder.glob("img_align_celeba.zip"), *sorted(folder.glob("celeba_*jpg.zip"))]
        if not images.is_dir() and not archives:
            raise self.missing(folder, ["img_align_celeba/", "img_align_celeba.zip"])
        known = read_annotations(self, folder)
        labels, row_of = known.column(self.label), {file: row for row, file in enumerate(known.files)}
        if images.is_dir():
            names = sorted(path.name for path in images.iterdir() if path.name in row_of)[: self.limit]
            x = decode_images(names, lambda name: read_file(images / name), size=self.size, channels=3)
        else:
            with open_zip(archives[0]) as archive:
                members = sorted(name for name in archive.namelist() if PurePosixPath(name).name in row_of)
                members = members[: self.limit]
                x = decode_images(members, partial(read_member, archive), size=self.size, channels=3)
            names = [PurePosixPath(name).name for name in members]
        rows = np.array([row_of[name] for name in names], dtype=np.int64)
        people = None if known.people is None else known.people[rows]
        to_train = known.partition[rows] == 0
        parts = (np.flatnonzero(to_train), np.flatnonzero(~to_train))
        note = part_note(len(rows), ORIGINAL)
        if not all(len(part) for part in parts):
            parts = split(np.zeros(len(rows)), 0.2, together=people)
            note += " They are all of one side of the official split; a fifth, by person, is held out to test."
        train, test = (
            image_examples(x[part], labels[rows[part]], None if people is None else people[part]) for part in parts
        )
        classes = (f"not {self.label}", self.label)
        return image_dataset(self.name, classes, train, test, normalize=self.normalize, note=note)
