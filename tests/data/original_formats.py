"""Writes tiny files in the formats that the data sets come in from their makers; used by the tests of this folder."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

CELEBA_NAMES = ["Attractive", "Male", "Smiling", "Young"]
COP_MODE_HEADER = (
    "userID,callState,networkStatus,plugState,checkedPermissionGroup,grantResult,selectedSemanticLoc,"
    "wasRequestExpected,category,isTopAppRequestingApp,isForeground,hour,isWeekend"
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool = False, rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Four files of an MNIST-like data set; gives the training images and labels."""
    images = rng().integers(0, 256, (rows, 28, 28), dtype=np.uint8)
    labels = np.arange(rows, dtype=np.uint8) % 10
    contents = {
        "train-images-idx3-ubyte": images,
        "train-labels-idx1-ubyte": labels,
        "t10k-images-idx3-ubyte": images[:2],
        "t10k-labels-idx1-ubyte": labels[:2],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return images, labels


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Five batches of two records and a test batch; gives the training images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    records = rng().integers(0, 256, (12, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(12) % 10
    for number in range(5):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(records[2 * number : 2 * number + 2].tobytes())
    (folder / "test_batch.bin").write_bytes(records[10:].tobytes())
    return records[:10, 1:].reshape(10, 3, 32, 32), records[:10, 0]


def write_cifar100(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    records = rng().integers(0, 256, (6, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = 19, (0, 99, 5, 6, 7, 8)  # coarse, fine
    (folder / "train.bin").write_bytes(records[:4].tobytes())
    (folder / "test.bin").write_bytes(records[4:].tobytes())
    return records[:4, 2:].reshape(4, 3, 32, 32), records[:4, 1]


def write_fer(folder: Path) -> np.ndarray:
    """Kaggle's table: two training, one public and one private test image."""
    folder.mkdir(parents=True, exist_ok=True)
    images = rng().integers(0, 256, (4, 48, 48))
    usages = ("Training", "Training", "PublicTest", "PrivateTest")
    lines = ["emotion,pixels,Usage"]
    for emotion, (image, usage) in enumerate(zip(images, usages, strict=True)):
        lines.append(f"{emotion},{' '.join(str(pixel) for pixel in image.ravel())},{usage}")
    (folder / "fer2013.csv").write_text("\n".join(lines) + "\n")
    return images


def write_ham(folder: Path) -> np.ndarray:
    """Kaggle's table of 28 x 28 colours, and the metadata with two images of each of 20 lesions."""
    folder.mkdir(parents=True, exist_ok=True)
    images = rng().integers(0, 256, (40, 28, 28, 3))
    names, codes = ("akiec", "bcc", "bkl", "df", "nv", "vasc", "mel"), [4] * 20 + [6] * 20
    header = ",".join(f"pixel{number:04d}" for number in range(2352)) + ",label"
    rows = [",".join(map(str, [*image.ravel(), code])) for image, code in zip(images, codes, strict=True)]
    (folder / "hmnist_28_28_RGB.csv").write_text("\n".join([header, *rows]) + "\n")
    described = [
        f"HAM_{row // 2:07d},ISIC_{row:07d},{names[code]},histo,80.0,male,scalp" for row, code in enumerate(codes)
    ]
    header = "lesion_id,image_id,dx,dx_type,age,sex,localization"
    (folder / "HAM10000_metadata.csv").write_text("\n".join([header, *described]) + "\n")
    return images


ADULT_TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Peru, <=50K
50, Self-emp-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 13, Cuba, >50K
38, ?, 215646, HS-grad, 9, Divorced, ?, Not-in-family, Black, Female, 0, 0, 40, ?, <=50K

"""
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
38, Private, 89814, HS-grad, 9, Divorced, Farming-fishing, Husband, White, Male, 0, 0, 50, United-States, >50K.

"""


def write_adult(folder: Path, *, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("adult.data", ADULT_TRAIN), ("adult.test", ADULT_TEST)):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)


def write_celeba_lists(folder: Path, *, rows: int = 10, identity: bool = True) -> np.ndarray:
    """The text files of CelebA with four attributes; gives the attributes as 0 and 1. The last 4 rows are to test."""
    folder.mkdir(parents=True, exist_ok=True)
    attributes = rng().integers(0, 2, (rows, len(CELEBA_NAMES)))
    files = [f"{row + 1:06d}.jpg" for row in range(rows)]
    body = [
        f"{file} {' '.join(f'{2 * value - 1:2d}' for value in row)}"
        for file, row in zip(files, attributes, strict=True)
    ]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(rows), " ".join(CELEBA_NAMES) + " ", *body]) + "\n")
    sides = [0] * (rows - 4) + [1, 1, 2, 2]
    lines = [f"{file} {side}\n" for file, side in zip(files, sides, strict=True)]
    (folder / "list_eval_partition.txt").write_text("".join(lines))
    if identity:
        (folder / "identity_CelebA.txt").write_text("".join(f"{file} {100 + i // 2}\n" for i, file in enumerate(files)))
    return attributes


def image_bytes(colour: tuple[int, int, int], size: tuple[int, int] = (20, 30), kind: str = "PNG") -> bytes:
    """A picture of one colour, `size` being width and height."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def write_celeba_images(folder: Path, rows: int = 10) -> None:
    """Grey images as JPEG, the first one darkest."""
    (folder / "img_align_celeba").mkdir(parents=True, exist_ok=True)
    for row in range(rows):
        data = image_bytes((20 * row, 20 * row, 20 * row), (178, 218), "JPEG")
        (folder / "img_align_celeba" / f"{row + 1:06d}.jpg").write_bytes(data)


def write_yale_mat(folder: Path) -> np.ndarray:
    """The MATLAB file: images column by column, people from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    images = rng().integers(0, 256, (30, 32, 32), dtype=np.uint8)
    people = np.repeat(np.arange(1, 16, dtype=np.uint8), 2)[:, None]
    savemat(folder / "Yale_32x32.mat", {"fea": images.transpose(0, 2, 1).reshape(30, 1024), "gnd": people})
    return images


def write_location(folder: Path, *, name: str = "bangkok", rows: int = 60) -> np.ndarray:
    """The tgz with one table: a quoted label from 1, then 446 columns."""
    folder.mkdir(parents=True, exist_ok=True)
    features = rng().integers(0, 2, (rows, 446))
    text = "".join(f'"{row % 30 + 1}",{",".join(map(str, line))}\n' for row, line in enumerate(features)).encode()
    with tarfile.open(folder / "dataset_location.tgz", "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return features


def write_android(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header = ",".join([*(f"android.permission.P{number}" for number in range(86)), "Result"])
    rows = [",".join(map(str, row)) for row in rng().integers(0, 2, (30, 87))]
    (folder / "data.csv").write_text("\n".join([header, *rows]) + "\n")


def write_cop_mode(folder: Path, rows: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cop_mode.csv").write_text("\n".join([COP_MODE_HEADER, *rows]) + "\n")


COP_MODE_ROWS = [
    "1.1,0,METERED,0,android.permission-group.CAMERA,0,Home,2,COMMUNICATION,True,True,9,False",
    "1.1,0,NOT_METERED,2,android.permission-group.STORAGE,-1,Work,1,GAME_ACTION,False,True,21,True",
    "1.1,2,METERED,0,android.permission-group.CAMERA,0,Home,2,GAME_PUZZLE,False,False,0,True",
    "1.2,0,METERED,0,android.permission-group.CONTACTS,-1,Home,0,SOCIAL,False,,12,False",  # an empty cell
    "1.2,0,METERED,0,android.permission-group.SENSORS,-1,Home,0,SOCIAL,False,True,12,False",
    "1.2,0,METERED,1,android.permission-group.CONTACTS,-1,Home,0,SOCIAL,False,False,23,False",
]


def write_images(folder: Path) -> None:
    """Class folders, dark to bright: ten each of red and blue."""
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(10):
            colour = [0, 0, 0]
            colour[channel] = 25 * number
            (folder / name / f"{number}.png").write_bytes(image_bytes((colour[0], colour[1], colour[2])))


# For every format: the data set, the folder below the data folder, and what writes it.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "mnist": ("mnist", write_idx),
    "fashion-mnist": ("fashion_mnist", lambda folder: write_idx(folder, packed=True)),
    "cifar10": ("cifar10", write_cifar10),
    "cifar100": ("cifar100", write_cifar100),
    "fer2013": ("fer2013", write_fer),
    "ham10000": ("ham10000", write_ham),
    "celeba-attributes": ("celeba", write_celeba_lists),
    "celeba-images": ("celeba", lambda folder: (write_celeba_lists(folder), write_celeba_images(folder))),
    "adult": ("adult", write_adult),
    "yale": ("yale_faces", write_yale_mat),
    "location30": ("location30", write_location),
    "android-permissions": ("android_permissions", write_android),
    "cop-mode": ("cop_mode", lambda folder: write_cop_mode(folder, COP_MODE_ROWS)),
    "image-folder": ("images", write_images),
}
