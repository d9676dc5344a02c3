"""Flower's arrays as tensors and back; what a client sent is checked against its header before it is read."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from fedspill.errors import InputRefused

Arrays: TypeAlias = Mapping[str, Array]

_LONGEST_HEADER = 4096  # bytes; NumPy writes 128


@lru_cache(maxsize=1024)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type. Cached, because clients send the same headers over and over."""
    file = io.BytesIO(data)
    major, _ = npy.read_magic(file)
    return npy.read_array_header_1_0(file) if major == 1 else npy.read_array_header_2_0(file)


def _header_length(data: bytes) -> int:
    """NumPy's magic and version take 8 bytes, then comes the length of the rest in 2 bytes, or 4 from version 2 on."""
    size = 2 if data[6:7] == b"\x01" else 4
    return 8 + size + int.from_bytes(data[8 : 8 + size], "little")


def read_array(name: str, array: Array) -> np.ndarray[Any, Any]:
    """The numbers of an array, not copied and not writable."""
    try:
        start = _header_length(array.data)
        shape, fortran, dtype = _header(array.data[: min(start, _LONGEST_HEADER)])
    except (ValueError, OSError) as error:
        raise InputRefused(f"array {name!r} is not in NumPy's format: {str(error)[:100]}") from None
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or not dtype.isnative:
        raise InputRefused(f"array {name!r} holds {dtype}, expected numbers of at most 8 bytes in native order")
    declared, present = math.prod(shape) * dtype.itemsize, len(array.data) - start
    if declared != present:
        raise InputRefused(f"array {name!r} declares shape {shape}, {declared:,} bytes, and brings {present:,}")
    numbers = np.frombuffer(array.data, dtype, offset=start)
    return numbers.reshape(shape, order="F" if fortran else "C")


def tensors_of(arrays: Arrays) -> dict[str, Tensor]:
    """Tensors with storage of their own."""
    return {name: torch.from_numpy(read_array(name, array).copy()) for name, array in arrays.items()}


def update_from(sent: Mapping[str, Tensor], returned: Arrays) -> dict[str, Tensor]:
    """What came back minus what was sent, for every tensor of floating-point numbers, in the type that was sent.

    Integers (counters of batch norm) are state and not part of the update. Arrays that were not sent, or come back in
    another shape, are passed on as they are, so that the check of the update can name them.
    """
    update = {}
    for name, array in returned.items():
        start, now = sent.get(name), read_array(name, array)
        if start is None or start.shape != now.shape:
            update[name] = torch.from_numpy(now.copy())
        elif start.is_floating_point():
            update[name] = torch.from_numpy(np.asarray(np.subtract(now, start.numpy()))).to(start.dtype)
    return update


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()})


def single_array_record(content: RecordDict, key: str | None = None) -> tuple[str, ArrayRecord]:
    """The one ArrayRecord of a message and its key; refused where it is not clear which one is the model."""
    records = content.array_records
    if key is not None and key in records:
        return key, records[key]
    if len(records) != 1:
        raise InputRefused(f"expected one ArrayRecord, got {len(records)} ({', '.join(records) or 'none'})")
    return next(iter(records.items()))
