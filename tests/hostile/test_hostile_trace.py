"""A trace that was damaged, cut or forged is refused by name; nothing of it is believed, followed or unpacked."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spine import attempt

from fedspill.errors import FedspillError, InputRefused, TraceRefused
from fedspill.files import FileLimits
from fedspill.trace_folder import FolderTrace

Lines = list[dict[str, Any]]
Forge = Callable[[Callable[[Lines], object]], Path]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_pristine_trace_opens(pristine: Path) -> None:
    assert len(list(FolderTrace(pristine).messages())) == 3 * 6


def test_a_thousand_random_single_byte_flips_are_all_detected(trace: Path) -> None:
    rng = random.Random(2026)
    contents = {path: path.read_bytes() for path in files_of(trace)}
    places = [(path, offset) for path, content in contents.items() for offset in range(len(content))]
    missed = []
    for path, offset in rng.choices(places, k=1000):
        damaged = bytearray(contents[path])
        damaged[offset] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        result = attempt(lambda: FolderTrace(trace))
        if not isinstance(result, TraceRefused) or str(trace) not in str(result):
            missed.append((path.name, offset))
        path.write_bytes(contents[path])
    assert missed == []
    FolderTrace(trace)


def test_no_flip_in_the_text_files_means_the_same(trace: Path) -> None:
    """The text files are where a flip could mean the same: white space, escapes, the order of keys."""
    for path in (trace / "trace.json", trace / "index.jsonl"):
        content = path.read_bytes()
        for offset in range(0, len(content), 11):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x20]) + content[offset + 1 :])
            with pytest.raises(TraceRefused):
                FolderTrace(trace)
        path.write_bytes(content)


def test_a_trace_cut_at_any_line_or_a_byte_beside_it_is_refused_or_opened_to_its_last_whole_round(trace: Path) -> None:
    index = (trace / "index.jsonl").read_bytes()
    ends = [offset + 1 for offset, byte in enumerate(index) if byte == ord("\n")]
    assert len(ends) == 5  # start, three rounds, finished
    for number, end in enumerate(ends):
        for cut in (end - 1, end, end + 1):
            (trace / "index.jsonl").write_bytes(index[:cut])
            if cut >= len(index):
                continue
            with pytest.raises(TraceRefused):
                FolderTrace(trace)
            whole = number if cut >= end else number - 1  # lines behind the first that are whole
            if cut < ends[0]:
                with pytest.raises(TraceRefused):
                    FolderTrace(trace, partial=True)
                continue
            part = FolderTrace(trace, partial=True)
            assert {message.round for message in part.messages()} == set(range(min(whole, 3)))
            assert part.events[-1].party == "trace"
            assert "opened up to here only" in part.events[-1].what


def test_an_empty_index_is_refused_even_in_part(trace: Path) -> None:
    (trace / "index.jsonl").write_bytes(b"")
    for partial in (False, True):
        with pytest.raises(TraceRefused, match="is empty"):
            FolderTrace(trace, partial=partial)


@pytest.mark.parametrize("name", ["trace.json", "rounds/000001.safetensors", "truth/000001.safetensors"])
def test_a_file_cut_anywhere_is_refused(trace: Path, name: str) -> None:
    content = (trace / name).read_bytes()
    for cut in [0, 1, 7, 8, 9, len(content) // 2, len(content) - 1]:
        (trace / name).write_bytes(content[:cut])
        with pytest.raises(TraceRefused, match=Path(name).name):
            FolderTrace(trace)
    (trace / name).unlink()
    with pytest.raises(TraceRefused, match=Path(name).name):
        FolderTrace(trace)


def test_a_damaged_round_is_not_opened_in_part_but_those_before_it_are(trace: Path) -> None:
    path = trace / "rounds" / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    part = FolderTrace(trace, partial=True)
    assert {message.round for message in part.messages()} == {0}
    assert "000001.safetensors was altered" in part.events[-1].what


def test_an_altered_header_is_refused_even_in_part(trace: Path) -> None:
    header = json.loads((trace / "trace.json").read_text())
    header["protocol"]["local_lr"] = 0.5
    (trace / "trace.json").write_text(json.dumps(header))
    with pytest.raises(TraceRefused, match=r"trace\.json was altered"):
        FolderTrace(trace, partial=True)


def test_rounds_cannot_be_swapped_between_two_sound_traces(trace: Path, pristine: Path) -> None:
    for part in ("rounds", "truth"):
        shutil.copy(pristine / part / "000002.safetensors", trace / part / "000001.safetensors")
        with pytest.raises(TraceRefused, match="altered"):
            FolderTrace(trace)


def test_lines_cannot_be_swapped_left_out_or_repeated(trace: Path) -> None:
    lines = (trace / "index.jsonl").read_bytes().splitlines(keepends=True)
    for order in ([0, 2, 1, 3, 4], [0, 1, 3, 4], [0, 1, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 4]):
        (trace / "index.jsonl").write_bytes(b"".join(lines[number] for number in order))
        with pytest.raises(TraceRefused):
            FolderTrace(trace)


# What follows has all checks right: whoever sends a trace can compute them.


def test_a_forged_trace_with_nothing_wrong_opens(forge: Forge) -> None:
    assert len(list(FolderTrace(forge(lambda lines: None)).messages())) == 18


def rehashed(folder: Path, name: str) -> dict[str, str]:
    return {"name": name, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "rounds/../../outside.safetensors",
        "/etc/hostname",
        "link.safetensors",
        "linked/outside.safetensors",
        "rounds",
        "",
        ".",
        "nul\x00",
        "pipe",
        "x" * 5000,
        "~/outside.safetensors",
        "C:\\outside.safetensors",
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_not_followed(trace: Path, forge: Forge, name: str) -> None:
    outside = trace.parent / "outside.safetensors"
    shutil.copy(trace / "rounds" / "000000.safetensors", outside)
    (trace / "link.safetensors").symlink_to(outside)
    (trace / "linked").symlink_to(trace.parent, target_is_directory=True)
    os.mkfifo(trace / "pipe")
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    for part in ("file", "truth"):
        with pytest.raises(TraceRefused):
            FolderTrace(forge(lambda lines, part=part: lines[1].update({part: {"name": name, "sha256": digest}})))


@pytest.mark.parametrize("name", ["trace.json", "index.jsonl"])
def test_the_two_files_of_fixed_name_may_not_be_links_either(trace: Path, name: str) -> None:
    (trace / name).rename(trace.parent / name)
    (trace / name).symlink_to(trace.parent / name)
    with pytest.raises(TraceRefused):
        FolderTrace(trace)


@pytest.mark.parametrize("name", ["trace.json", "index.jsonl"])
def test_a_pipe_in_place_of_a_file_does_not_hang(trace: Path, name: str) -> None:
    (trace / name).unlink()
    os.mkfifo(trace / name)
    with pytest.raises(TraceRefused, match="not a file"):
        FolderTrace(trace)


def entry(**change: object) -> Callable[[Lines], object]:
    return lambda lines: lines[1]["messages"][1].update(change)


def without(key: str) -> Callable[[Lines], object]:
    return lambda lines: lines[1]["messages"][1].pop(key)


MALFORMED: dict[str, Callable[[Lines], object]] = {
    "round is a word": lambda lines: lines[1].update(round="first"),
    "round is true": lambda lines: lines[1].update(round=True),
    "round is negative": lambda lines: lines[1].update(round=-1),
    "round is a fraction": lambda lines: lines[1].update(round=0.5),
    "round comes twice": lambda lines: lines[2].update(round=0),
    "rounds go backwards": lambda lines: lines[1].update(round=7),
    "no messages": lambda lines: lines[1].pop("messages"),
    "messages are a number": lambda lines: lines[1].update(messages=3),
    "a message is a word": lambda lines: lines[1]["messages"].append("hello"),
    "no kind": without("kind"),
    "unknown kind": entry(kind="secret"),
    "kind is a list": entry(kind=[]),
    "no sender": without("sender"),
    "sender is nothing": entry(sender=None),
    "receiver is a list": entry(receiver=["server"]),
    "no info": without("info"),
    "info is a list": entry(info=[1]),
    "info is nested": entry(info={"examples": {"a": 1}}),
    "info is nothing": entry(info={"examples": None}),
    "no tensors": without("tensors"),
    "tensors are a word": entry(tensors="head.bias"),
    "a tensor is a number": entry(tensors=[1]),
    "events are a word": lambda lines: lines[1].update(events="none"),
    "an event is a list": lambda lines: lines[1].update(events=[["a", "b"]]),
    "an event is a number": lambda lines: lines[1].update(events=[{"party": 1, "what": "x"}]),
    "no file": lambda lines: lines[1].pop("file"),
    "file is a word": lambda lines: lines[1].update(file="rounds/000000.safetensors"),
    "file has no hash": lambda lines: lines[1]["file"].pop("sha256"),
    "file name is a number": lambda lines: lines[1]["file"].update(name=7),
    "unknown type": lambda lines: lines[1].update(type="other"),
    "no type": lambda lines: lines[1].pop("type"),
    "start is no start": lambda lines: lines[0].update(type="round"),
    "no start": lambda lines: lines.pop(0),
    "fewer rounds than it says": lambda lines: lines.pop(3),
    "finished twice": lambda lines: lines.append(dict(lines[-1])),
    "goes on after its end": lambda lines: lines.append(dict(lines[1])),
    "line is a list": lambda lines: lines.insert(1, {"type": "round", "round": []}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_forged_index_that_is_malformed_is_refused(forge: Forge, what: str) -> None:
    with pytest.raises(TraceRefused):
        FolderTrace(forge(MALFORMED[what]))


def test_a_tensor_that_is_announced_and_not_there_is_refused_when_read(forge: Forge) -> None:
    trace = FolderTrace(forge(entry(tensors=["head.bias", "ghost"])))
    with pytest.raises(InputRefused, match="ghost"):
        list(trace.messages("update"))


HEADERS: dict[str, bytes] = {
    "five million lists": b'{"format":"fedspill-trace","version":1,"protocol":{"a":[' + b"[]," * 5_000_000 + b"1]}}",
    "deep": b'{"format":"fedspill-trace","version":1,"protocol":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep objects": b'{"format":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "duplicate keys": b'{"format":"fedspill-trace","version":1,"version":1,"protocol":{}}',
    "duplicate keys deep down": b'{"format":"fedspill-trace","version":1,"protocol":{"a":{"b":1,"b":2}}}',
    "nan": b'{"format":"fedspill-trace","version":1,"protocol":{"local_lr":NaN}}',
    "infinity": b'{"format":"fedspill-trace","version":1,"protocol":{"local_lr":-Infinity}}',
    "overflow": b'{"format":"fedspill-trace","version":1,"protocol":{"local_lr":1e999}}',
    "endless number": b'{"format":"fedspill-trace","version":1,"protocol":{"a":' + b"1" * 10_000 + b"}}",
    "bad utf-8": b'{"format":"fedspill-trace","version":1,"protocol":{"a":"\xff\xfe"}}',
    "utf-16": '{"format":"fedspill-trace"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"format":"fedspill-trace","version":1,"protocol":{}}',
    "list": b"[]",
    "nothing": b"",
    "null": b"null",
    "no protocol": b'{"format":"fedspill-trace","version":1}',
    "protocol is a list": b'{"format":"fedspill-trace","version":1,"protocol":[]}',
    "two values": b"{}{}",
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_hostile_header_is_refused(trace: Path, forge: Forge, what: str) -> None:
    (trace / "trace.json").write_bytes(HEADERS[what])
    digest = hashlib.sha256(HEADERS[what]).hexdigest()
    with pytest.raises(TraceRefused, match=r"trace\.json"):
        FolderTrace(forge(lambda lines: lines[0].update(trace=digest)))


@pytest.mark.parametrize("depth", [10, 300, 700, *range(900, 1100, 7), 10_000])
def test_a_deep_line_of_the_index_is_refused_at_any_depth(trace: Path, depth: int) -> None:
    index = trace / "index.jsonl"
    first, rest = index.read_bytes().split(b"\n", 1)
    index.write_bytes(first + b'\n{"a":' + b"[" * depth + b"]" * depth + b"}\n" + rest)
    with pytest.raises(TraceRefused):
        FolderTrace(trace)


@pytest.mark.parametrize(
    "line", [b"\xff\n", b"[]\n", b"null\n", b'{"a":"\\ud800"}\n', b"{}\n", b"\n", b"\r\n", b"\x00\n"]
)
def test_a_line_of_the_index_that_is_no_line_is_refused(trace: Path, line: bytes) -> None:
    index = trace / "index.jsonl"
    first, rest = index.read_bytes().split(b"\n", 1)
    index.write_bytes(first + b"\n" + line + rest)
    with pytest.raises(TraceRefused):
        FolderTrace(trace)
    part = FolderTrace(trace, partial=True)
    assert list(part.messages()) == []
    assert part.events[-1].party == "trace"


def test_limits_hold_for_every_part(trace: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in files_of(trace)}
    for limits in (
        FileLimits(json_bytes=sizes["trace.json"] - 1),
        FileLimits(json_bytes=sizes["index.jsonl"] - 1),
        FileLimits(file_bytes=sizes["000000.safetensors"] - 1),
    ):
        with pytest.raises(TraceRefused, match="the limit is"):
            FolderTrace(trace, limits=limits)
    for limits in (FileLimits(tensors=3), FileLimits(header_bytes=10)):
        with pytest.raises(InputRefused):
            list(FolderTrace(trace, limits=limits).messages())


def test_a_file_replaced_after_opening_is_still_read_safely(trace: Path) -> None:
    opened = FolderTrace(trace)
    (trace / "rounds" / "000000.safetensors").write_bytes(b"\x80\x04pickle!")
    with pytest.raises(FedspillError, match="pickle"):
        list(opened.messages())
