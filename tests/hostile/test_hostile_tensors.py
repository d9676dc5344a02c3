"""Tensor files from outside: never unpickled, never believed before they are checked, never dear to refuse."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from fedspill.errors import InputRefused
from fedspill.files import FileLimits, read_tensors


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def torch_file(thing: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer, **options)
    return buffer.getvalue()


def numpy_file(thing: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([thing], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return buffer.getvalue()


def coats(canary: Canary) -> dict[str, bytes]:
    dumped = {f"pickle {protocol}": pickle.dumps(canary, protocol) for protocol in range(6)}
    state = {"head.weight": torch.ones(2, 2), "x": canary}
    sound = safetensors.torch.save({"a": torch.ones(1)})
    return dumped | {
        "torch zip": torch_file(state),
        "torch legacy": torch_file(state, _use_new_zipfile_serialization=False),
        "numpy objects": numpy_file(canary),
        "zip": zipped(pickle.dumps(canary)),
        "zip in zip": zipped(zipped(pickle.dumps(canary))),
        "pickle behind zeros": bytes(8) + pickle.dumps(canary),
        "pickle as header": struct.pack("<Q", len(pickle.dumps(canary))) + pickle.dumps(canary),
        "pickle behind tensors": sound + pickle.dumps(canary),
        "header of 128 bytes, then a pickle": struct.pack("<Q", 128) + pickle.dumps(canary),
        "one byte": b"\x80",
        "two bytes": b"\x80\x04",
    }


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth", "bin"])
def test_no_coat_makes_us_unpickle(tmp_path: Path, suffix: str) -> None:
    canary = Canary(tmp_path / "canary")
    for number, (name, content) in enumerate(coats(canary).items()):
        path = tmp_path / f"{number}.{suffix}"
        path.write_bytes(content)
        with pytest.raises(InputRefused, match=str(path)):
            read_tensors(path)
        assert not canary.path.exists(), name


def test_the_canary_sings() -> None:
    """Or the test above proves nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pickle.loads(pickle.dumps(Canary(Path(folder) / "canary")))
        assert (Path(folder) / "canary").is_dir()


@pytest.mark.parametrize("content", [torch_file({"a": torch.ones(1)}), pickle.dumps({"a": 1})], ids=["zip", "pickle"])
def test_a_pickle_is_called_one_and_the_way_out_is_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputRefused, match=r"is a pickle or a zip archive.*it was not opened.*save_file"):
        read_tensors(tmp_path / "model.safetensors")


@pytest.mark.parametrize("padding", range(0, 40))
def test_a_sound_file_whose_header_begins_like_a_pickle_is_read(tmp_path: Path, padding: int) -> None:
    """A header of 128 bytes writes its length as 0x80 0x00."""
    write(tmp_path / "x", {"a" * (60 + padding): {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
    assert len(read_tensors(tmp_path / "x")) == 1


def write(path: Path, header: object, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


UNSOUND: dict[str, tuple[object, bytes]] = {
    "a terabyte": ({"a": tensor([2**38], 0, 2**40)}, bytes(4)),
    "a terabyte in two dimensions": ({"a": tensor([2**19, 2**19], 0, 2**40)}, bytes(4)),
    "product overflows": ({"a": tensor([2**32, 2**32, 4], 0, 4)}, bytes(4)),
    "nothing of a huge width": ({"a": tensor([2**40, 0], 0, 0)}, b""),
    "overlapping": ({"a": tensor([1], 0, 4), "b": tensor([1], 0, 4)}, bytes(4)),
    "half overlapping": ({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)),
    "a hole": ({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)),
    "offsets backwards": ({"a": tensor([1], 4, 0)}, bytes(4)),
    "negative offsets": ({"a": tensor([1], -4, 0)}, bytes(4)),
    "beyond the end": ({"a": tensor([4], 0, 16)}, bytes(8)),
    "bytes left over": ({"a": tensor([1], 0, 4)}, bytes(8)),
    "shape does not fit": ({"a": tensor([3], 0, 4)}, bytes(4)),
    "negative shape": ({"a": tensor([-1], 0, 4)}, bytes(4)),
    "fractional shape": ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, bytes(4)),
    "unknown type": ({"a": tensor([1], 0, 4, "F31")}, bytes(4)),
    "object type": ({"a": tensor([1], 0, 4, "O")}, bytes(4)),
    "no type": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "a word": ({"a": "tensor"}, b""),
    "a list": ([], b""),
    "a number": (7, b""),
    "duplicate names": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],'
                        b'"data_offsets":[0,4]}}', bytes(4)),
    "nan": (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)),
    "bad utf-8": (b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "lone surrogate": (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "deep": (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b""),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": tensor([1], 0, 4)}, bytes(4)),
    "empty header": (b"", b""),
}  # fmt: skip


@pytest.mark.parametrize("what", UNSOUND)
def test_an_unsound_header_is_refused(tmp_path: Path, what: str) -> None:
    header, body = UNSOUND[what]
    with pytest.raises(InputRefused, match=str(tmp_path / "x")):
        read_tensors(write(tmp_path / "x", header, body))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_shorter_than_its_length_field_is_truncated(tmp_path: Path, size: int) -> None:
    (tmp_path / "x").write_bytes(bytes(size))
    with pytest.raises(InputRefused, match="truncated"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("declared", [2**64 - 1, 2**63, 2**40, (16 << 20) + 1, 3])
def test_a_header_larger_than_the_file_or_the_limit_is_not_read(tmp_path: Path, declared: int) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", declared) + b"{}")
    with pytest.raises(InputRefused, match="declares a header"):
        read_tensors(tmp_path / "x")


def test_limits_are_options(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {name: tensor([0], 0, 0) for name in "abc"})
    assert sorted(read_tensors(path)) == ["a", "b", "c"]
    for limits in (FileLimits(tensors=2), FileLimits(header_bytes=20), FileLimits(file_bytes=20)):
        with pytest.raises(InputRefused, match="limit is"):
            read_tensors(path, limits=limits)


BOMBS: dict[str, Callable[[Path], object]] = {
    "a terabyte": lambda path: write(path, {"a": tensor([2**38], 0, 2**40)}, bytes(4)),
    "a hollow terabyte": lambda path: write(path, {"a": tensor([2**38, 0], 0, 0)}),
    "a million tensors": lambda path: write(path, many(1_000_000)),
    "as many tensors as fit the header": lambda path: write(path, many(270_000)),
    "a header of lists": lambda path: write(path, b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"),
    "a header of objects": lambda path: write(path, b'{"a":[' + b"{}," * 5_000_000 + b"{}]}"),
    "a header of numbers": lambda path: write(path, b'{"a":[' + b"999," * 4_000_000 + b"1]}"),
    "a deep header": lambda path: write(path, b'{"a":' + b"[" * 7_000_000 + b"]" * 7_000_000 + b"}"),
    "a zip": lambda path: path.write_bytes(zipped(bytes(100_000_000))),
    "a hundred gigabytes of nothing": lambda path: os.truncate(write(path, {}), 100 << 30),
}

# Reads the files it is given and prints by how many megabytes its memory grew at the worst moment of each, or "read".
MEASURE = """
import json, sys
from pathlib import Path
import torch
from fedspill.errors import InputRefused
from fedspill.files import read_tensors, write_tensors

def kilobytes(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))

def grown(path):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = kilobytes("VmRSS")
    try:
        read_tensors(path)
    except InputRefused:
        return (kilobytes("VmHWM") - before) / 1024
    return "read"

sound, *bombs = map(Path, sys.argv[1:])
write_tensors(sound, {"a": torch.ones(3)})
assert grown(sound) == "read"
print(json.dumps([grown(bomb) for bomb in bombs]))
"""


def many(number: int) -> bytes:
    entries = (b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % index for index in range(number))
    return b"{" + b",".join(entries) + b"}"


def test_bombs_are_refused_within_fifty_megabytes_each(tmp_path: Path) -> None:
    for number, drop in enumerate(BOMBS.values()):
        drop(tmp_path / str(number))
    paths = [tmp_path / "sound", *(tmp_path / str(number) for number in range(len(BOMBS)))]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, paths)], capture_output=True, text=True, check=True, timeout=250
    )
    grown = dict(zip(BOMBS, json.loads(run.stdout), strict=True))
    assert "read" not in grown.values(), grown
    assert max(grown.values()) <= 50, grown
