"""Files made to mislead or to harm are refused by name, before they cost memory, and run nothing."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import original_formats as made
import pytest
from PIL import Image
from scipy.io import savemat

from fedspill.data.adult import Adult
from fedspill.data.android_permissions import AndroidPermissions
from fedspill.data.archives import LIMIT, read_file
from fedspill.data.celeba_attributes import CelebaAttributes
from fedspill.data.cifar10 import Cifar10
from fedspill.data.cifar100 import Cifar100
from fedspill.data.fer2013 import Fer2013
from fedspill.data.image_folder import ImageFolder
from fedspill.data.location30 import Location30
from fedspill.data.mnist import Mnist
from fedspill.data.olivetti import Olivetti
from fedspill.data.yale import Yale
from fedspill.errors import InputRefused


@contextmanager
def little_memory(limit: int = 32 * 2**20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


class Harm:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def write_npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def test_truncated_idx(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputRefused, match=r"train-images-idx3-ubyte: expected 3,920 bytes .* got 3,919"):
        Mnist().load(tmp_path)
    path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(InputRefused, match="header of 16 bytes, got 9"):
        Mnist().load(tmp_path)


def test_truncated_gzip(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputRefused, match=r"train-images-idx3-ubyte\.gz is truncated"):
        Mnist().load(tmp_path)


def test_idx_of_the_wrong_kind(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    images, labels = (tmp_path / "mnist" / f"train-{name}-ubyte" for name in ("images-idx3", "labels-idx1"))
    data = images.read_bytes()
    images.write_bytes(labels.read_bytes())
    with pytest.raises(InputRefused, match="begins with 00000803, got 00000801"):
        Mnist().load(tmp_path)
    images.write_bytes(b"\x00\x00\x0d\x03" + data[4:])  # floats
    with pytest.raises(InputRefused, match="begins with 00000803, got 00000d03"):
        Mnist().load(tmp_path)


def test_idx_that_declares_more_than_it_holds_takes_no_memory(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"\x00" * 100)
    with little_memory(), pytest.raises(InputRefused, match="got 100"):
        Mnist().load(tmp_path)


def test_images_and_labels_of_different_number(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(made.idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(InputRefused, match="5 train inputs but 4 labels"):
        Mnist().load(tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    made.write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(made.idx_bytes(np.full(5, 10, np.uint8)))
    made.write_cifar10(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    made.write_fer(tmp_path / "fer2013")
    path = tmp_path / "fer2013" / "fer2013.csv"
    path.write_text(path.read_text().replace("\n1,", "\n-1,"))
    for source in (Mnist(), Cifar10(), Fer2013()):
        with pytest.raises(InputRefused, match="label lies outside"):
            source.load(tmp_path)


def test_cifar_batch_of_the_wrong_length(tmp_path: Path) -> None:
    made.write_cifar10(tmp_path / "cifar10")
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputRefused, match=r"data_batch_3\.bin: expected a multiple of 3,073 bytes, got 6,145"):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Cifar10(), "cifar-10-batches-py/data_batch_1"),
        (Cifar10(), "cifar-10-python.tar.gz"),
        (Cifar10(), "data_batch_1"),
        (Cifar100(), "cifar-100-python/train"),
        (Cifar100(), "cifar-100-python.tar.gz"),
    ],
)
def test_the_pickled_version_of_cifar_is_refused_and_the_binary_one_named(
    tmp_path: Path, source: Cifar10 | Cifar100, name: str
) -> None:
    path = tmp_path / source.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(InputRefused, match="pickle") as caught:
        source.load(tmp_path)
    assert "binary version" in caught.value.remedy


def test_pickled_objects_in_an_npz_are_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "orl_olivetti_faces").mkdir()
    trap = np.empty(1, dtype=object)
    trap[0] = Harm(tmp_path / "harmed")
    np.savez(tmp_path / "orl_olivetti_faces" / "olivetti_64x64.npz", x=trap, y=np.zeros(1, np.uint8))
    with pytest.raises(InputRefused, match="'x' holds pickled Python objects"):
        Olivetti().load(tmp_path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "member",
    [
        write_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 64, 64), }", b"12"),
        write_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 64, 64), }", b"12"),
        write_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (10**999, 64, 64), }", b"12"),
        write_npy("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1, 64, 64), }"),
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"",
    ],
)
def test_npy_header_that_lies(tmp_path: Path, member: bytes) -> None:
    (tmp_path / "orl_olivetti_faces").mkdir()
    with zipfile.ZipFile(tmp_path / "orl_olivetti_faces" / "olivetti_64x64.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with little_memory(), pytest.raises(InputRefused, match=r"olivetti_64x64\.npz"):
        Olivetti().load(tmp_path)


def test_archive_that_declares_too_much_is_refused_unopened(tmp_path: Path) -> None:
    (tmp_path / "orl_olivetti_faces").mkdir()
    path = tmp_path / "orl_olivetti_faces" / "olivetti_64x64.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1000))
        archive.infolist()[0].file_size = LIMIT + 1
    with little_memory(), pytest.raises(InputRefused, match=r"declares 2,147,483,649 bytes out of"):
        Olivetti().load(tmp_path)
    path.rename(tmp_path / "images")
    with pytest.raises(InputRefused, match="declares"):
        ImageFolder().load(tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_archive_that_holds_more_than_it_declares_stops_early(tmp_path: Path, method: int) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("cat/1.png", bytes(150 * 2**20))
        archive.infolist()[0].file_size = 1000
    with little_memory(128 * 2**20), pytest.raises(InputRefused, match=r"cat/1\.png"):
        ImageFolder(path=str(path)).load()


def test_gzip_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(64 * 2**20)))
    with little_memory(), pytest.raises(InputRefused, match="more than the 1,000,000 bytes"):
        read_file(path, limit=1_000_000)


def test_tar_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write_location(tmp_path / "location30")
    monkeypatch.setattr("fedspill.data.location30.UNPACKED", 10_000)
    with pytest.raises(InputRefused, match="more than the 10,000 bytes"):
        Location30().load(tmp_path)


def test_sparse_tar_member_that_declares_a_terabyte(tmp_path: Path) -> None:
    (tmp_path / "location30").mkdir()
    with tarfile.open(tmp_path / "location30" / "dataset_location.tgz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("bangkok")
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(10**12), "GNU.sparse.numblocks": "1"}
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    with little_memory(), pytest.raises(InputRefused, match="tgz with one text file"):
        Location30().load(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_tar_without_a_plain_file(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "location30").mkdir()
    with tarfile.open(tmp_path / "location30" / "dataset_location.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("bangkok")
        member.type, member.linkname = kind, "/etc/hostname"
        archive.addfile(member)
    with pytest.raises(InputRefused, match="tgz with one text file"):
        Location30().load(tmp_path)


def png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + b"\0\0\0\1IDAT"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (png_header(12_000, 12_000), "declares more pixels"),
        (png_header(100_000, 100_000), "declares more pixels"),
        (made.image_bytes((9, 9, 9), (400, 400), "JPEG")[:-500], "truncated"),
        (made.image_bytes((9, 9, 9), kind="GIF"), "not a JPEG or PNG"),
        (b"GIF89a", "not a JPEG or PNG"),
        (b"", "not a JPEG or PNG"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # as outside of tests: a warning alone refuses nothing
def test_broken_and_bloated_images(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.png").write_bytes(data)
    with little_memory(), pytest.raises(InputRefused, match=rf"cat/1\.png.*{told}"):
        ImageFolder().load(tmp_path)


def test_decoding_leaves_no_setting_of_pillow_changed(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    made.write_images(tmp_path / "images")
    ImageFolder().load(tmp_path)
    assert before == Image.MAX_IMAGE_PIXELS


def test_matlab_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yale_faces").mkdir()
    content = {"fea": np.zeros((40_000, 1024), np.uint8), "gnd": np.ones((40_000, 1))}
    savemat(tmp_path / "yale_faces" / "Yale_32x32.mat", content, do_compression=True)
    monkeypatch.setattr("fedspill.data.matlab.UNPACKED", 1_000_000)
    with little_memory(), pytest.raises(InputRefused, match="unpacks to more than the 1,000,000 bytes"):
        Yale().load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"fea": np.zeros((3, 1000)), "gnd": np.ones((3, 1))},
        {"fea": np.full((3, 1024), 300.0), "gnd": np.ones((3, 1))},
        {"fea": np.full((3, 1024), np.nan), "gnd": np.ones((3, 1))},
        {"fea": np.array([["a"]], dtype=object), "gnd": np.ones((1, 1))},
        {"fea": np.zeros((3, 1024)), "gnd": np.zeros((3, 1))},
        {"fea": np.zeros((3, 1024), complex), "gnd": np.ones((3, 1))},
        {"gnd": np.ones((3, 1))},
    ],
)
def test_matlab_file_with_something_else_in_it(tmp_path: Path, content: dict[str, np.ndarray]) -> None:
    (tmp_path / "yale_faces").mkdir()
    savemat(tmp_path / "yale_faces" / "Yale_32x32.mat", content)
    with pytest.raises(InputRefused, match=r"Yale_32x32\.mat"):
        Yale().load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (" 2174, 0, 40,", " 2174, 0,", "line 1: expected 15 fields, got 14"),
        ("<=50K\n", "rich\n", "line 1: expected <=50K or >50K"),
        ("39, State-gov", "secret, State-gov", "whole numbers in age"),
    ],
)
def test_adult_rows_that_are_none(tmp_path: Path, old: str, new: str, told: str) -> None:
    made.write_adult(tmp_path / "adult")
    (tmp_path / "adult" / "adult.data").write_text(made.ADULT_TRAIN.replace(old, new, 1))
    with pytest.raises(InputRefused, match=told) as caught:
        Adult().load(tmp_path)
    assert "secret" not in str(caught.value)  # no data in messages
    assert "rich" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"), [("0,", "0,999 "), ("0,", "0,12 "), ("0,", "0,x "), ("0,", "0,1.5 "), ("PublicTest", "Training2")]
)
def test_fer_rows_that_are_none(tmp_path: Path, old: str, new: str) -> None:
    made.write_fer(tmp_path / "fer2013")
    path = tmp_path / "fer2013" / "fer2013.csv"
    path.write_text(path.read_text().replace("\n" + old, "\n" + new, 1).replace("PublicTest", new, 1))
    with pytest.raises(InputRefused, match=r"fer2013\.csv"):
        Fer2013().load(tmp_path)


@pytest.mark.parametrize("change", ["0.5", "1e0", "nan", "2", "", "0x0"])
@pytest.mark.filterwarnings("ignore")  # as outside of tests: a warning alone refuses nothing
def test_table_of_0_and_1_with_something_else_in_it(tmp_path: Path, change: str) -> None:
    made.write_android(tmp_path / "android_permissions")
    path = tmp_path / "android_permissions" / "data.csv"
    head, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([head, change + first[1:], *others]))
    with pytest.raises(InputRefused, match=r"data\.csv"):
        AndroidPermissions().load(tmp_path)


@pytest.mark.filterwarnings("ignore")  # as outside of tests: a warning alone refuses nothing
def test_table_without_rows(tmp_path: Path) -> None:
    made.write_android(tmp_path / "android_permissions")
    path = tmp_path / "android_permissions" / "data.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputRefused, match=r"data\.csv"):
        AndroidPermissions().load(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("list_attr_celeba.txt", "10\n", "11\n", "announces '11' images, got 10"),
        ("list_attr_celeba.txt", " 1\n", " 0\n", "expected -1 or 1"),
        ("list_attr_celeba.txt", " Young", "", "each of 3 attributes, got 4"),
        ("list_eval_partition.txt", "000002.jpg", "000003.jpg", "in its order"),
        ("list_eval_partition.txt", "000002.jpg 0", "000002.jpg", "not a list of files and whole numbers"),
        ("identity_CelebA.txt", "000002.jpg 100", "000002.jpg x", "not a list of files and whole numbers"),
    ],
)
def test_celeba_lists_that_disagree(tmp_path: Path, file: str, old: str, new: str, told: str) -> None:
    made.write_celeba_lists(tmp_path / "celeba")
    path = tmp_path / "celeba" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputRefused, match=told):
        CelebaAttributes().load(tmp_path)
