"""Files: what is written is whole and private, what is read is what was written."""

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spine import attempt

from fedspill import files
from fedspill.errors import FedspillError, InputRefused, NotWritten
from fedspill.files import (
    dump_json,
    parse_json,
    read_json,
    read_tensors,
    sha256,
    write_bytes,
    write_tensors,
)

TENSORS = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "ünïcode/with slash": torch.tensor([1, 2, 3]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 5),
    "flags": torch.tensor([True, False]),
}


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS)
    back = read_tensors(path)
    assert back.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_transposed_and_shared_tensors_are_written_as_their_values(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    write_tensors(tmp_path / "x", {"t": base.T})
    assert torch.equal(read_tensors(tmp_path / "x")["t"], base.T)


def test_only_what_is_asked_for_is_read_and_what_is_missing_is_named(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"a": torch.ones(1), "b": torch.ones(1)})
    assert list(read_tensors(tmp_path / "x", only=["b"])) == ["b"]
    assert read_tensors(tmp_path / "x", only=[]) == {}
    with pytest.raises(InputRefused, match=r"no tensor 'c'.*It has: a, b"):
        read_tensors(tmp_path / "x", only=["a", "c"])


def test_a_file_is_readable_by_its_owner_only_and_leaves_no_temporary(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_bytes(tmp_path / "x", b"1")
        write_bytes(tmp_path / "x", b"22")
    finally:
        os.umask(old)
    assert (tmp_path / "x").read_bytes() == b"22"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_bytes(tmp_path / "x", b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "write":
        monkeypatch.setattr(files.os, "fdopen", full)
    else:
        monkeypatch.setattr(files.os, step, full)
    with pytest.raises(NotWritten, match=r"7 bytes.*No space left"):
        write_bytes(tmp_path / "x", b"new one")
    monkeypatch.undo()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_is_not_there_or_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none" / "x", tmp_path / "file" / "x", tmp_path):
        with pytest.raises(NotWritten, match="cannot be written"):
            write_bytes(path, b"1")


def test_a_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(InputRefused, match="No such file"):
        sha256(tmp_path / "y")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def has_surrogate(value: object) -> bool:
    try:
        dump_json(value)
    except UnicodeEncodeError:
        return True
    return False


@given(PLAIN.filter(lambda value: not has_surrogate(value)))
@settings(max_examples=150, deadline=None)
def test_json_goes_there_and_back_in_one_canonical_form(value: object) -> None:
    text = dump_json(value)
    assert parse_json(text, "x") == value
    assert dump_json(parse_json(text, "x")) == text


def test_the_canonical_form_sorts_and_refuses_what_is_not_json() -> None:
    assert dump_json({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"ü"],"b":1}'.encode()
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            dump_json(value)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_json_or_refused(content: bytes) -> None:
    result = attempt(lambda: parse_json(content, "x"))
    if isinstance(result, FedspillError):
        assert isinstance(result, InputRefused)
        assert str(result).startswith("x")


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_tensors_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    assert isinstance(attempt(lambda: read_tensors(path)), InputRefused | dict)


def test_a_folder_a_pipe_and_nothing_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path, "not a file"), (tmp_path / "pipe", "not a file"), (tmp_path / "none", "No such file")):
        for read in (read_tensors, read_json):
            with pytest.raises(InputRefused, match=why):
                read(path)
