"""From image files and byte arrays to examples: decoding, sizes, standardisation."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedspill.data.archives import refusing
from fedspill.dataset import Dataset, Examples
from fedspill.errors import InputRefused, UsageError

MEMORY = 16 * 2**30  # bytes that one data set's inputs may take


def image_examples(x: NDArray[np.uint8], y: NDArray[Any], users: NDArray[Any] | None = None) -> Examples:
    """Bytes (n, channels, height, width), or (n, height, width) in grey, as examples in [0, 1]."""
    if x.ndim == 3:
        x = x[:, None]
    inputs = torch.from_numpy(x.astype(np.float32)).div_(255)
    owners = None if users is None else torch.from_numpy(users.astype(np.int64))
    return Examples(inputs, torch.from_numpy(y.astype(np.int64)), owners)


def image_dataset(
    name: str, classes: Sequence[str], train: Examples, test: Examples, *, normalize: bool, note: str = ""
) -> Dataset:
    """A data set of images; `normalize` gives every channel mean 0 and deviation 1 over the training images."""
    if normalize and len(train):
        mean = train.x.mean(dim=(0, 2, 3), keepdim=True)
        deviation = train.x.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-6)
        train = Examples((train.x - mean) / deviation, train.y, train.users)
        test = Examples((test.x - mean) / deviation, test.y, test.users)
    return Dataset(name, tuple(classes), train, test, note=note)


def decode_images(
    names: Sequence[str], read: Callable[[str], bytes], *, size: int | None, channels: int
) -> NDArray[np.uint8]:
    """JPEG and PNG files as bytes (n, channels, height, width): cut and scaled to size x size, or all as they are."""
    if channels not in (1, 3):
        raise UsageError(f"channels must be 1 or 3, got {channels}.")
    if size is not None and size < 1:
        raise UsageError(f"size must be at least 1, got {size}.")
    if not names:
        return np.zeros((0, channels, size or 1, size or 1), dtype=np.uint8)
    first = _decode(names[0], read(names[0]), size, channels)
    needed = 4 * len(names) * math.prod(first.shape)
    if needed > MEMORY:
        raise UsageError(
            f"{len(names):,} images of shape {first.shape} take {needed / 2**30:.0f} GiB; at most {MEMORY / 2**30:.0f} "
            "GiB are loaded.",
            remedy="Take fewer or smaller images by option.",
        )
    images = np.empty((len(names), *first.shape), dtype=np.uint8)
    for index, name in enumerate(names):
        image = _decode(name, read(name), size, channels)
        if image.shape != first.shape:
            raise InputRefused(
                f"Image {name} has shape {image.shape}, the first one {first.shape}.",
                remedy="Set the option size to bring all of them to one size.",
            )
        images[index] = image
    return images


def _decode(name: str, data: bytes, size: int | None, channels: int) -> NDArray[np.uint8]:
    with refusing(f"Image {name}", "a JPEG or PNG"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image: Image.Image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise InputRefused(f"Image {name} declares more pixels than are decoded.") from None
        image = image.convert("L" if channels == 1 else "RGB")
        if size is not None and image.size != (size, size):
            image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
