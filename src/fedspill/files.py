"""Reading and writing files that others may have touched: caps before allocating, one refusal per cause, no pickle."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import safetensors
import torch
from torch import Tensor

from fedspill.errors import InputRefused, NotWritten


@dataclass(frozen=True)
class FileLimits:
    """What a file may cost before it is refused."""

    file_bytes: int = 16 << 30
    header_bytes: int = 16 << 20
    tensors: int = 100_000
    json_bytes: int = 256 << 20


LIMITS = FileLimits()
SPARSE_FROM = 1 << 30  # bytes; smaller files may be as hollow as they like, and compressing file systems do that
MOST_ITEMS = 4_000_000  # values in one piece of JSON: as Python objects they take many times the room of their text


def read_tensors(path: Path, *, only: Iterable[str] | None = None, limits: FileLimits = LIMITS) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or those named in `only`."""
    check_safetensors(path, limits)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            present = list(file.keys())
            wanted = present if only is None else list(only)
            for name in set(wanted) - set(present):
                raise InputRefused(f"{path} has no tensor {name!r}.", remedy=f"It has: {_some(present)}.")
            return {name: file.get_tensor(name) for name in wanted}
    except safetensors.SafetensorError as error:
        raise InputRefused(f"{path} is not a sound safetensors file: {error}.") from None
    except (RuntimeError, OSError, MemoryError) as error:  # it cannot be mapped: larger than the memory, or hollow
        raise InputRefused(f"{path} is too large to be read here ({type(error).__name__}).") from None


def check_safetensors(path: Path, limits: FileLimits = LIMITS) -> dict[str, Any]:
    """The header of a safetensors file, read under the limits before anything is allocated."""
    try:
        size = _size_of_file(path)
        with path.open("rb") as file:
            start = file.read(8)
            _refuse_pickle(path, start)
            if len(start) < 8:
                raise InputRefused(f"{path} is truncated: {size} bytes, expected at least 8.")
            (header_size,) = struct.unpack("<Q", start)
            if size > limits.file_bytes:
                raise InputRefused(f"{path} has {size:,} bytes, the limit is {limits.file_bytes:,}.")
            if header_size > min(limits.header_bytes, size - 8):
                raise InputRefused(
                    f"{path} is not a sound safetensors file: it declares a header of {header_size:,} bytes; "
                    f"the file has {size:,} and the limit is {limits.header_bytes:,}."
                )
            content = file.read(header_size)
    except OSError as error:
        raise InputRefused(f"{path} cannot be read: {error.strerror}.") from None
    _refuse_large_header(path, content, limits)
    header = parse_json(content, str(path))
    if not isinstance(header, dict):
        raise InputRefused(f"{path} is not a sound safetensors file: its header is not an object.")
    header.pop("__metadata__", None)
    if len(header) > limits.tensors:
        raise InputRefused(f"{path} declares {len(header):,} tensors, the limit is {limits.tensors:,}.")
    _refuse_sparse(path, size)
    for name, entry in header.items():
        _refuse_hollow(path, name, entry, size)
    return header


def _refuse_large_header(path: Path, content: bytes, limits: FileLimits) -> None:
    """Counts what a header holds before it becomes Python objects, each many times as large as its text.

    A tensor has one object, two lists and, up to eight dimensions, at most eleven commas.
    """
    for sign, per_tensor in ((b"{", 2), (b"[", 4), (b",", 16)):
        if content.count(sign) > per_tensor * limits.tensors + 64:
            raise InputRefused(
                f"{path} declares more than {limits.tensors:,} tensors, or a header that is not one of tensors."
            )


def _refuse_sparse(path: Path, size: int) -> None:
    """A file of holes costs its sender nothing and its reader all of it."""
    there = path.stat().st_blocks * 512
    if size > SPARSE_FROM and there < size // 16:
        raise InputRefused(f"{path} is hollow: it declares {size:,} bytes and holds {there:,}.")


def _refuse_hollow(path: Path, name: str, entry: Any, size: int) -> None:
    """A tensor without elements may still declare a dimension that any sum over it would have to allocate."""
    shape = entry.get("shape") if isinstance(entry, dict) else None
    for dimension in shape if isinstance(shape, list) else ():
        if isinstance(dimension, int) and dimension > max(size, 1 << 20):
            raise InputRefused(f"{path}: {name!r} declares a dimension of {dimension:,} in a file of {size:,} bytes.")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes a safetensors file, tensor by tensor and without a copy of the whole; returns its SHA-256."""
    text, parts, _ = _safetensors(tensors)
    return _write(path, [text, *map(_numbers, parts)])


def write_pieces(file: IO[bytes], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], int]:
    """Writes a safetensors file that has no name; returns its header, and where its numbers begin."""
    text, parts, header = _safetensors(tensors)
    pieces: list[bytes | memoryview] = [text, *map(_numbers, parts)]
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[file.write(rest) :]
    return header, len(text)


def _safetensors(tensors: Mapping[str, Tensor]) -> tuple[bytes, list[Tensor], dict[str, Any]]:
    """The beginning of a safetensors file, the tensors that lie behind it, and what the beginning says."""
    parts = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(parts, key=lambda name: (-parts[name].element_size(), name)):  # so that each is aligned
        start, end = end, end + parts[name].numel() * parts[name].element_size()
        kind = _KINDS[parts[name].dtype]
        header[name] = {"dtype": kind, "shape": list(parts[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, [parts[name] for name in header if parts[name].numel()], header


def _numbers(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TENSOR_TYPES = {kind: dtype for dtype, kind in _KINDS.items()}


def write_bytes(path: Path, content: bytes) -> None:
    """Atomic write: temporary name, flush to disk, rename. Readable by the owner only."""
    _write(path, [content])


def _write(path: Path, pieces: Sequence[bytes | memoryview]) -> str:
    """Writes the pieces under a temporary name and renames it: the final name is whole or absent."""
    temporary = path.with_name(path.name + ".part")
    digest = hashlib.sha256()
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise NotWritten(
            f"{path} ({sum(map(len, pieces)):,} bytes) cannot be written: {error.strerror}.",
            remedy="Free some space or name a folder that you may write to.",
        ) from None
    return digest.hexdigest()


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputRefused(f"{path} cannot be read: {error.strerror}.") from None


def dump_json(value: object) -> bytes:
    """One canonical form: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def read_json(path: Path, limits: FileLimits = LIMITS) -> Any:
    return parse_json(read_bytes(path, limits), str(path))


def read_bytes(path: Path, limits: FileLimits = LIMITS) -> bytes:
    """A JSON file as it is, if it is not over the limit."""
    try:
        size = _size_of_file(path)
        if size > limits.json_bytes:
            raise InputRefused(f"{path} has {size:,} bytes, the limit is {limits.json_bytes:,}.")
        return path.read_bytes()
    except OSError as error:
        raise InputRefused(f"{path} cannot be read: {error.strerror}.") from None


def parse_json(content: bytes, where: str) -> Any:
    """JSON without the traps: no duplicate keys, no NaN or Infinity, no bottomless nesting, UTF-8 only."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise InputRefused(f"{where}: a JSON object names a key twice.")
        return result

    def no_constant(token: str) -> NoReturn:
        raise InputRefused(f"{where}: {token} is not a number.")

    def finite(token: str) -> float:
        number = float(token)
        if not math.isfinite(number):  # 1e999
            raise InputRefused(f"{where}: {token[:40]} is not a finite number.")
        return number

    if sum(content.count(sign) for sign in (b",", b"[", b"{")) > MOST_ITEMS:
        raise InputRefused(f"{where} holds more than {MOST_ITEMS:,} values.")
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant, parse_float=finite
        )
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{where} is not sound JSON: {str(error)[:200]}.") from None


def _size_of_file(path: Path) -> int:
    """Its bytes; a pipe or a device has none to speak of, and reading one may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputRefused(f"{path} is not a file.")
    return status.st_size


def _refuse_pickle(path: Path, start: bytes) -> None:
    if start[:2] == b"PK" or (
        start[:1] == b"\x80" and start[1:2] in b"\x00\x01\x02\x03\x04\x05" and start[2:8] != bytes(6)
    ):
        raise InputRefused(
            f"{path} is a pickle or a zip archive (a torch.save file?), not safetensors; it was not opened.",
            remedy="A pickle can run code. Convert it where you trust it: safetensors.torch.save_file(state, path).",
        )


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")
