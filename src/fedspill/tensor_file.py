"""TensorFile: the tensors of one large message, kept in a file and mapped one by one when they are asked for.

A mapped tensor takes no memory of the process: its pages are the system's copy of the file, which it drops when memory
is needed. So a recording of any size can be read, and whoever reads only the last layer pays for the last layer only.
"""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fedspill.errors import InputRefused, NotWritten
from fedspill.files import LIMITS, TENSOR_TYPES, FileLimits, check_safetensors, write_pieces

LARGE = 4 << 20  # bytes: smaller messages are cheaper to copy than to open a file for (convention)
_PIECE = 16 << 20  # bytes copied at once


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@final
class TensorFile(Mapping[str, Tensor]):
    """Tensors by name. Each reading maps anew: whoever writes into a tensor changes nothing but a copy of its own."""

    def __init__(self, descriptor: int, places: Mapping[str, TensorPlace]) -> None:
        """Takes over the descriptor of an open file."""
        _allow_many_files()
        self._descriptor, self.places = descriptor, dict(places)
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: Path, limits: FileLimits = LIMITS) -> TensorFile:
        """A safetensors file, checked before anything of it is mapped."""
        places = _places(check_safetensors(path, limits), path)
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), places)
        except OSError as error:
            raise InputRefused(f"{path} cannot be opened: {error.strerror}.") from None

    @classmethod
    def holding(cls, tensors: Mapping[str, Tensor]) -> TensorFile:
        """These tensors, put into a file without a name, which is gone when nobody reads it any more."""
        try:
            with tempfile.TemporaryFile(prefix="fedspill-", buffering=0) as file:
                header, begin = write_pieces(file, tensors)
                return cls(os.dup(file.fileno()), _placed(header, begin)).in_order(tensors)
        except OSError as error:
            raise NotWritten(
                f"A message cannot be put aside under {tempfile.gettempdir()}: {error.strerror}.",
                remedy="Free some space, or set TMPDIR to a folder that has it.",
            ) from None

    def __getitem__(self, name: str) -> Tensor:
        place = self.places[name]
        if place.end == place.start:
            return torch.empty(place.shape, dtype=place.dtype)
        first = place.start - place.start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._descriptor, place.end - first, access=mmap.ACCESS_COPY, offset=first)
        count = (place.end - place.start) // place.dtype.itemsize
        return torch.frombuffer(mapped, dtype=place.dtype, count=count, offset=place.start - first).view(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __reduce__(self) -> Any:
        raise TypeError("A file does not go through a pipe; hand over its descriptor.")

    @property
    def nbytes(self) -> int:
        return sum(place.end - place.start for place in self.places.values())

    def in_order(self, names: Iterable[str]) -> TensorFile:
        """The same tensors; a file sorts them by name, and who sent them had them in the order of the layers."""
        self.places = {name: self.places[name] for name in names}
        return self

    def fileno(self) -> int:
        return self._descriptor

    def copied(self) -> TensorFile:
        """The same tensors in a file of their own, copied piece by piece."""
        with tempfile.TemporaryFile(prefix="fedspill-", buffering=0) as file:
            offset = 0
            while piece := os.pread(self._descriptor, _PIECE, offset):
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]
                offset += len(piece)
            return TensorFile(os.dup(file.fileno()), self.places)


def is_large(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a message with these tensors lies in a file of its own."""
    return bytes_of(tensors) >= LARGE


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    if isinstance(tensors, TensorFile):
        return tensors.nbytes
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _places(header: Mapping[str, Any], path: Path) -> dict[str, TensorPlace]:
    """Those of a header that came with a file: sizes fit types and shapes, and nothing lies outside or overlaps."""
    with path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    try:
        places = _placed(header, begin)
        sound = all(
            place.dtype.itemsize * torch.Size(place.shape).numel() == place.end - place.start
            and min((*place.shape, 0)) >= 0
            and begin <= place.start <= place.end <= size
            for place in places.values()
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    ends = sorted((place.start, place.end) for place in places.values()) if sound else []
    if not sound or any(later[0] < earlier[1] for earlier, later in pairwise(ends)):
        raise InputRefused(f"{path} is not a sound safetensors file: its tensors do not lie where they should.")
    return places


def _placed(header: Mapping[str, Any], begin: int) -> dict[str, TensorPlace]:
    return {
        name: TensorPlace(
            TENSOR_TYPES[entry["dtype"]],
            tuple(int(length) for length in entry["shape"]),
            begin + int(entry["data_offsets"][0]),
            begin + int(entry["data_offsets"][1]),
        )
        for name, entry in header.items()
    }


@cache
def _allow_many_files() -> None:
    """One descriptor for each large message: as many as the system allows, not the thousand that shells allow."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
