"""Any images in one folder per class, such as Linnaeus 5 or ImageNet, unpacked or as a zip archive."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from fedspill.data.archives import open_zip, read_file, read_member
from fedspill.data.images import decode_images, image_dataset, image_examples
from fedspill.data.splits import split
from fedspill.dataset import Dataset, DataSource
from fedspill.errors import UsageError

ENDINGS = (".jpg", ".jpeg", ".png")
TRAIN, TEST = ("train", "training"), ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class ImageFolder(DataSource):
    """JPEG and PNG files as class/file or train/class/file and test/class/file; loose files are class_anything."""

    name = "image-folder"
    title = "Folder of images"
    folder = "."
    source = "wherever your images are, and set the option path"

    path: str = "images"  # below the data folder, or absolute
    size: int = 64
    channels: int = 3
    per_class: int | None = None  # the first so many images of every class
    test_share: float = 0.2  # where there is no folder test
    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        place = folder / self.path
        if self.per_class is not None and self.per_class < 1:
            raise UsageError(f"per_class must be at least 1, got {self.per_class}.")
        with ExitStack() as stack:
            if place.is_dir():
                found = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
                names, read = pictures(found), lambda name: read_file(place / name)
            elif place.is_file():
                archive = stack.enter_context(open_zip(place))
                names, read = pictures(archive.namelist()), lambda name: read_member(archive, name)
            else:
                names = []
            names = self._limited(names)
            if not names:
                raise self.missing(place, ["class/*.jpg or .png", "train/class/*.jpg", "a zip archive of these"])
            x = decode_images(names, read, size=self.size, channels=self.channels)
        classes, y = np.unique([class_of(name) for name in names], return_inverse=True)
        to_test = np.array([side_of(name) in TEST for name in names])
        parts = (np.flatnonzero(~to_test), np.flatnonzero(to_test)) if to_test.any() else split(y, self.test_share)
        train, test = (image_examples(x[part], y[part]) for part in parts)
        return image_dataset(self.name, classes.tolist(), train, test, normalize=self.normalize)

    def _limited(self, names: list[str]) -> list[str]:
        """The first `per_class` of every class and side."""
        seen: dict[tuple[str, str], int] = {}
        kept = []
        for name in names:
            key = (side_of(name), class_of(name))
            seen[key] = seen.get(key, 0) + 1
            if self.per_class is None or seen[key] <= self.per_class:
                kept.append(name)
        return kept


def pictures(names: list[str]) -> list[str]:
    """The names of image files, sorted, without hidden ones and those of macOS."""
    hidden = [any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts) for name in names]
    return sorted(name for name, skip in zip(names, hidden, strict=True) if not skip and name.lower().endswith(ENDINGS))


def class_of(name: str) -> str:
    """The folder that a file lies in; of a loose file what stands before the first underscore."""
    path = PurePosixPath(name)
    return path.parent.name or path.stem.split("_", 1)[0]


def side_of(name: str) -> str:
    """The folder above the class where it is called train or test, else nothing."""
    above = PurePosixPath(name).parent.parent.name.lower()
    return above if above in TRAIN + TEST else ""
