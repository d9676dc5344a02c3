"""Reads files from outside without trusting them: sizes are checked before unpacking, and nothing is unpickled."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedspill.errors import FedspillError, InputRefused

NumpyKind: TypeAlias = Literal["uint8", "integer", "floating", "bool_", "str_"]  # names of numpy
LIMIT = 2 * 2**30  # bytes that one file may take when unpacked
RATIO = 500  # unpacked over packed: what zlib reaches at its very best is about 1,000, on a single byte
SMALL = 64 << 20  # bytes that may be of any ratio
MEMBERS = 5_000_000  # files that one archive may list
_CHUNK, _STEP = 2**20, 2**12  # bytes read at once from files, and from archives
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    StopIteration,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def first_of(folder: Path, *names: str) -> Path | None:
    """The first of these files that exists, plain or as .gz."""
    candidates = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


@contextmanager
def refusing(path: Path | str, expected: str) -> Iterator[None]:
    """Turns what a reader raises on a damaged file into one refusal; the file's contents stay out of the message."""
    try:
        yield
    except FedspillError:
        raise
    except _DAMAGE as error:
        raise InputRefused(f"{path} is truncated, damaged or not {expected} ({type(error).__name__}).") from None


def read_file(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of a plain or .gz file, never more than `limit` of them."""
    chunks, size = [], 0
    with refusing(path, "a gzip file"), gzip.open(path) if path.suffix in (".gz", ".tgz") else path.open("rb") as file:
        while size <= limit and (chunk := file.read(_CHUNK)):
            chunks.append(chunk)
            size += len(chunk)
    if size > limit:
        raise InputRefused(f"{path} holds more than the {limit:,} bytes allowed.")
    return b"".join(chunks)


def read_text(path: Path) -> str:
    """The text of a plain or .gz file in UTF-8."""
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputRefused(
            f"{path} is truncated, damaged or not UTF-8 text.",
            remedy="Export it as UTF-8, or turn it with `iconv -f LATIN1 -t UTF-8`.",
        ) from None


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose declared contents are within the limits."""
    with refusing(path, "a zip archive"):
        archive = zipfile.ZipFile(path)
    with archive:
        members = archive.infolist()
        declared, packed = sum(member.file_size for member in members), path.stat().st_size
        if declared > SMALL and declared > RATIO * packed:
            raise InputRefused(f"{path} declares {declared:,} bytes out of {packed:,}: more than data give.")
        if declared > LIMIT or len(members) > MEMBERS:
            raise InputRefused(
                f"{path} declares {declared:,} bytes in {len(members):,} files; at most {LIMIT:,} bytes in "
                f"{MEMBERS:,} files are read."
            )
        yield archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One file of a zip archive, in small steps: one that unpacks to more than it declares cannot fill the memory."""
    with refusing(f"{archive.filename}: {name}", "a file of a zip archive"), archive.open(name) as file:
        return b"".join(iter(lambda: file.read(_STEP), b""))


def read_npz(path: Path, **layouts: tuple[NumpyKind, tuple[int | str, ...]]) -> list[NDArray[Any]]:
    """The named arrays of an npz file, each of the given type and shape; a letter stands for one size throughout.

    `read_npz(path, x=("uint8", ("n", 28, 28)), y=("integer", ("n",)))`
    """
    sizes: dict[str, int] = {}
    arrays = []
    with open_zip(path) as archive:
        for name, (kind, shape) in layouts.items():
            if f"{name}.npy" not in archive.namelist():
                found = ", ".join(member.removesuffix(".npy") for member in archive.namelist()[:20])
                raise InputRefused(f"{path}: expected an array {name!r}, got {found or 'none'}.")
            with refusing(path, "an npz file"):
                array = _read_npy(read_member(archive, f"{name}.npy"), f"{path}: array {name!r}")
            for length, got in zip(shape, array.shape, strict=False):
                if isinstance(length, str):
                    sizes.setdefault(length, got)
            expected = tuple(sizes.get(length, 0) if isinstance(length, str) else length for length in shape)
            if array.shape != expected or not np.issubdtype(array.dtype, getattr(np, kind)):
                wanted = ", ".join(str(sizes.get(str(length), length)) for length in shape)
                raise InputRefused(
                    f"{path}: array {name!r} must be {kind} of shape ({wanted}), "
                    f"got {array.dtype} of shape {array.shape}."
                )
            arrays.append(array)
    return arrays


def _read_npy(data: bytes, what: str) -> NDArray[Any]:
    """The array in an npy file, after comparing what its header declares with what is there."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise InputRefused(f"{what} is of npy version {version}; versions 1.0 and 2.0 are read.")
    shape, fortran_order, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputRefused(f"{what} holds pickled Python objects, which can run code when read. Store plain numbers.")
    declared, there = dtype.itemsize * int(np.prod(shape, dtype=object)), len(data) - file.tell()
    if declared != there:
        raise InputRefused(f"{what} declares {declared:,} bytes, got {there:,}.")
    array = np.frombuffer(data, dtype, offset=file.tell()) if there else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran_order else "C")
