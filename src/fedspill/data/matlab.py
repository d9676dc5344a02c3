"""Reads arrays of numbers from a MATLAB 5 file; a damaged one is refused (scipy's reader can crash the process)."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspill.data.archives import read_file, refusing
from fedspill.errors import InputRefused

UNPACKED = 512 * 2**20  # bytes that one array may take
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_FULL_REAL_NUMBERS = range(6, 16)  # array classes: double, single, and integers of 1 to 8 bytes
_COMPLEX = 0x0800


def read_matlab(path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays, each in MATLAB's shape and in the type that it is stored in."""
    data = read_file(path, UNPACKED)
    byte_order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if byte_order is None or len(data) < 128:
        raise InputRefused(f"{path}: expected a MATLAB 5 file (save it with -v6 or -v7), got another format.")
    found: dict[str, NDArray[Any]] = {}
    with refusing(path, "a MATLAB 5 file"):
        for kind, content in _elements(data[128:], byte_order):
            if kind == _COMPRESSED:
                kind, content = next(_elements(_unpack(path, content), byte_order))
            parts = list(_elements(content, byte_order)) if kind == _MATRIX else []
            if len(parts) >= 3 and (name := parts[2][1].decode()) in names:
                found[name] = _array(parts, byte_order)
    absent = [name for name in names if name not in found]
    if absent:
        raise InputRefused(f"{path}: expected the arrays {', '.join(names)}; {', '.join(absent)} not there.")
    return [found[name] for name in names]


def _elements(data: bytes, byte_order: str) -> Iterator[tuple[int, bytes]]:
    """The (type, content) of every element; those of up to four bytes lie inside their own tag."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{byte_order}II", data, place)
        start = place + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
            following = place + 8
        else:
            following = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if start + size > len(data):
            raise ValueError("truncated")
        yield kind, data[start : start + size]
        place = following


def _unpack(path: Path, content: bytes) -> bytes:
    reader = zlib.decompressobj()
    data = reader.decompress(content, UNPACKED + 1)
    if len(data) > UNPACKED:
        raise InputRefused(f"{path} unpacks to more than the {UNPACKED:,} bytes allowed.")
    if not reader.eof:
        raise ValueError("truncated")
    return data


def _array(parts: list[tuple[int, bytes]], byte_order: str) -> NDArray[Any]:
    """From an array's flags, dimensions, name and numbers."""
    flags = struct.unpack_from(f"{byte_order}I", parts[0][1])[0]
    shape = struct.unpack(f"{byte_order}{len(parts[1][1]) // 4}i", parts[1][1])
    if flags & 0xFF not in _FULL_REAL_NUMBERS or flags & _COMPLEX or len(parts) != 4 or parts[3][0] not in _TYPES:
        raise ValueError("no full array of real numbers")
    numbers = np.frombuffer(parts[3][1], byte_order + _TYPES[parts[3][0]])
    if min(shape, default=-1) < 0 or math.prod(shape) != len(numbers):
        raise ValueError("another number of numbers than declared")
    return numbers.reshape(shape, order="F")
