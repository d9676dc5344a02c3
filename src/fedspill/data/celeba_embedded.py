"""CelebA faces as paper 004 uses them: an image embedding of 512 numbers and six attributes, to predict a seventh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor, nn

from fedspill.data.archives import open_zip, read_file, read_member, read_npz
from fedspill.data.celeba import ORIGINAL, read_annotations
from fedspill.data.images import decode_images
from fedspill.data.splits import part_note, split
from fedspill.data.tables import EncodedTable, table_dataset
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import InputRefused

PREDICTORS = ("Arched_Eyebrows", "Big_Nose", "Heavy_Makeup", "Male", "Wearing_Lipstick", "Young")
DIMENSIONS = 512
_FILTERS, _PATCH, _POOLED = 16, 5, 4


@dataclass(frozen=True)
class CelebaEmbedded(DataSource):
    """512 embedded numbers and six yes-or-no attributes of each face; the label is Attractive.

    The embedding is the user's own where the folder has celeba_embedding*.npz (`embedding`, one row per image in the
    order of their names; the authors use a pre-trained ResNet-18). Else one convolution layer is fitted to the images
    themselves: the 16 principal patches as filters, both signs rectified, averaged over a 4 x 4 grid.
    """

    name = "celeba-embedded"
    title = "CelebA faces, embedded, with attributes"
    paper = "004"
    folder = "celeba"
    source = "mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

    size: int = 32

    def read(self, folder: Path) -> Dataset:
        images = folder / "img_align_celeba"
        archives = [*folder.glob("img_align_celeba.zip"), *sorted(folder.glob("celeba_*jpg.zip"))]
        if not images.is_dir() and not archives:
            raise self.missing(folder, ["img_align_celeba/", "img_align_celeba.zip"])
        known = read_annotations(self, folder)
        row_of = {file: row for row, file in enumerate(known.files)}
        if images.is_dir():
            names = sorted(path.name for path in images.iterdir() if path.name in row_of)
            pixels = decode_images(names, lambda name: read_file(images / name), size=self.size, channels=3)
        else:
            with open_zip(archives[0]) as archive:
                members = sorted(name for name in archive.namelist() if PurePosixPath(name).name in row_of)
                pixels = decode_images(members, partial(read_member, archive), size=self.size, channels=3)
            names = [PurePosixPath(name).name for name in members]
        rows = np.array([row_of[name] for name in names], dtype=np.int64)
        own = sorted(folder.glob("celeba_embedding*.npz"))
        if own:
            (embedded,) = read_npz(own[0], embedding=("floating", ("n", DIMENSIONS)))
            if len(embedded) != len(rows):
                raise InputRefused(f"{own[0]}: expected {len(rows)} rows, one per image, got {len(embedded)}.")
        else:
            embedded = embed(torch.from_numpy(np.ascontiguousarray(pixels))).numpy()
        attributes = np.stack([known.column(name)[rows] for name in PREDICTORS], 1)
        x = np.concatenate([embedded.astype(np.float32), attributes.astype(np.float32)], 1)
        columns = (*(f"embedding{i}" for i in range(DIMENSIONS)), *PREDICTORS)
        people = None if known.people is None else known.people[rows]
        return table_dataset(
            self.name,
            ("not Attractive", "Attractive"),
            EncodedTable(x, columns, ()),
            known.column("Attractive")[rows],
            split(np.zeros(len(rows)), 0.2, together=people),
            users=people,
            note=part_note(len(rows), ORIGINAL),
        )


@torch.no_grad()
def embed(images: Tensor) -> Tensor:
    """(n, 512) of images (n, 3, size, size): principal patches, rectified both ways, pooled, mean 0 and deviation 1."""
    images = images.float() / (255 if images.dtype == torch.uint8 else 1)
    patches = nn.functional.unfold(images[:256], _PATCH, stride=3).transpose(1, 2).flatten(0, 1)
    patches = patches - patches.mean(1, keepdim=True)
    _, vectors = torch.linalg.eigh(patches.T.double() @ patches.double())
    filters = vectors[:, -_FILTERS:].T.float().reshape(_FILTERS, 3, _PATCH, _PATCH)
    filters = filters - filters.mean((1, 2, 3), keepdim=True)
    parts = []
    for some in torch.split(images, 256):
        found = nn.functional.conv2d(some, filters)
        both = torch.cat([found.clamp(min=0), (-found).clamp(min=0)], 1)
        parts.append(nn.functional.adaptive_avg_pool2d(both, _POOLED).flatten(1))
    features = torch.cat(parts)
    return (features - features.mean(0)) / features.std(0).clamp(min=1e-6)
