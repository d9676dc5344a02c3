"""A trace as a folder: what is recorded is what is read, in whole rounds."""

import json
import shutil
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from spine import federation, network, protocol_of, ragged_clients, recorded
from torch import Tensor

from fedspill import trace_folder
from fedspill.errors import NotWritten, TraceRefused, UsageError
from fedspill.federation.horizontal import Settings
from fedspill.messages import Message
from fedspill.trace import Event, Keep, MemoryTrace, Origin
from fedspill.trace_folder import FolderRecorder, FolderTrace
from fedspill.training import LocalTraining


def record(folder: Path, keep: Keep | None = None, **options: object) -> FolderRecorder:
    settings = Settings(rounds=2, training=LocalTraining(batch_size=4))
    recorder = FolderRecorder(folder, protocol_of(network(), settings, 4), keep or Keep())
    federation(ragged_clients(), recorder=recorder, **options).run()  # type: ignore[arg-type]
    return recorder


def flat(trace: MemoryTrace | FolderTrace) -> list[tuple[object, ...]]:
    return [
        (m.round, m.sender, m.receiver, m.kind, dict(m.info), {n: t.tolist() for n, t in m.tensors.items()})
        for m in trace.messages()
    ]


def test_a_folder_holds_what_memory_holds(tmp_path: Path) -> None:
    record(tmp_path / "t")
    folder, (memory, _) = FolderTrace(tmp_path / "t"), recorded()
    assert flat(folder) == flat(memory)
    assert folder.protocol == memory.protocol
    for message in memory.messages("update"):
        origin = Origin(message.round, message.sender)
        assert torch.equal(folder.truth().get(origin, "label_counts"), memory.truth().get(origin, "label_counts"))


def test_messages_by_kind_and_round(tmp_path: Path) -> None:
    record(tmp_path / "t")
    trace = FolderTrace(tmp_path / "t")
    assert [m.sender for m in trace.messages("update", round=1)] == [f"client:{index}" for index in range(4)]
    assert [m.kind for m in trace.messages(round=0)] == ["model", *["update"] * 4, "aggregate"]
    assert list(trace.messages("gradient")) == []


def test_what_a_reader_does_to_a_message_nobody_else_sees(tmp_path: Path) -> None:
    record(tmp_path / "t")
    trace = FolderTrace(tmp_path / "t")
    first = next(trace.messages("update"))
    samples = first.info["examples"]
    first.info["examples"] = 99  # type: ignore[index]
    first.tensors["head.bias"].fill_(torch.nan)
    again = next(trace.messages("update"))
    assert again.info["examples"] == samples
    assert bool(torch.isfinite(again.tensors["head.bias"]).all())


def test_events_come_back(tmp_path: Path) -> None:
    def tamper(index: int, message: Message) -> Message:
        return message if index else Message(message.round, *_address(message), {}, message.info)

    record(tmp_path / "t", tamper=tamper)
    assert FolderTrace(tmp_path / "t").events == [
        Event(number, "client:0", "left out: its update is empty") for number in (0, 1)
    ]


def test_whatever_a_client_sends_the_recording_goes_on_and_can_be_read(tmp_path: Path) -> None:
    """What cannot be written down is an event, everything else is recorded as it came."""
    odd: list[dict[str, object]] = [
        {"\ud800": torch.ones(1)},
        {"head.bias": [1.0]},
        {"head.bias": torch.ones(2).to_sparse()},
        {"head.bias": torch.full((3,), torch.nan), "../../x": torch.ones(1), "": torch.ones(0), "\x00": torch.ones(1)},
    ]

    def tamper(index: int, message: Message) -> Message:
        return Message(message.round, *_address(message), odd[index], message.info)  # type: ignore[arg-type]

    record(tmp_path / "t", tamper=tamper)
    trace = FolderTrace(tmp_path / "t")
    assert [(m.sender, sorted(m.tensors)) for m in trace.messages("update", round=0)] == [
        ("client:3", ["", "\x00", "../../x", "head.bias"])
    ]
    assert [event.party for event in trace.events if event.round == 0] == [*(f"client:{i}" for i in range(4)), "server"]
    assert {path.name for path in tmp_path.iterdir()} == {"t"}


def _address(message: Message) -> tuple[str, str, object]:
    return message.sender, message.receiver, message.kind


def test_the_folder_is_private_and_holds_nothing_but_its_files(tmp_path: Path) -> None:
    record(tmp_path / "t")
    found = {path.relative_to(tmp_path / "t").as_posix() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    numbers = [f"{number:06d}.safetensors" for number in (0, 1)]
    rounds = {f"{part}/{number}" for part in ("rounds", "truth") for number in numbers}
    assert found == {"trace.json", "index.jsonl"} | rounds
    for path in (tmp_path / "t").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_truth_can_be_taken_away_and_nothing_of_it_is_in_the_messages(tmp_path: Path) -> None:
    """Truth stands in a folder of its own; the rest names it by hash only."""
    record(tmp_path / "t")
    index = (tmp_path / "t" / "index.jsonl").read_text()
    assert "label_counts" not in index
    assert "label_counts" not in (tmp_path / "t" / "trace.json").read_text()
    assert b"label_counts" not in (tmp_path / "t" / "rounds" / "000000.safetensors").read_bytes()


def test_selective_recording(tmp_path: Path) -> None:
    keep = Keep(rounds=frozenset({1}), clients=frozenset({"client:2"}), tensors=("head.*",))
    record(tmp_path / "t", keep)
    trace = FolderTrace(tmp_path / "t")
    assert [(m.round, m.sender) for m in trace.messages()] == [(1, "server"), (1, "client:2"), (1, "aggregator")]
    assert all(set(m.tensors) == {"head.weight", "head.bias"} for m in trace.messages())
    assert trace.truth().has(Origin(1, "client:2"), "label_counts")
    assert not trace.truth().has(Origin(0, "client:2"), "label_counts")
    assert not (tmp_path / "t" / "rounds" / "000000.safetensors").exists()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        record(tmp_path / name, seed=seed)

    def content(name: str) -> dict[str, bytes]:
        paths = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        return {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in paths}

    assert content("a") == content("b")
    assert content("a")["rounds/000000.safetensors"] != content("c")["rounds/000000.safetensors"]


def test_a_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("x")
    for folder in (tmp_path / "used", tmp_path / "used" / "file"):
        with pytest.raises(UsageError, match="not an empty folder"):
            FolderRecorder(folder, {})
    with pytest.raises(NotWritten):
        FolderRecorder(tmp_path / "used" / "file" / "below", {})
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_recording_goes_into_an_empty_folder_that_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    record(tmp_path / "t")
    assert len(list(FolderTrace(tmp_path / "t").messages("aggregate"))) == 2


def test_a_full_disk_is_noticed_before_the_round_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr("fedspill.trace_folder.shutil.disk_usage", lambda _: usage)
    with pytest.raises(UsageError, match=r"takes .* bytes, 100 are free"):
        record(tmp_path / "t")
    with pytest.raises(TraceRefused, match="unfinished: 0 whole rounds"):
        FolderTrace(tmp_path / "t")


def test_a_federation_that_breaks_off_leaves_an_unfinished_trace(tmp_path: Path) -> None:
    def tamper(index: int, message: Message) -> Message:
        if message.round == 1:
            raise RuntimeError("power cut")
        return message

    with pytest.raises(RuntimeError, match="power cut"):
        record(tmp_path / "t", tamper=tamper)
    with pytest.raises(TraceRefused, match="unfinished: 1 whole rounds"):
        FolderTrace(tmp_path / "t")
    part = FolderTrace(tmp_path / "t", partial=True)
    assert {message.round for message in part.messages()} == {0}
    assert part.events[-1] == Event(1, "trace", "opened up to here only: the recording was not finished")


def test_a_whole_trace_opened_as_partial_is_whole_and_says_nothing(tmp_path: Path) -> None:
    record(tmp_path / "t")
    part = FolderTrace(tmp_path / "t", partial=True)
    assert flat(part) == flat(FolderTrace(tmp_path / "t"))
    assert part.events == []


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_version_is_refused_by_number(tmp_path: Path, version: object) -> None:
    record(tmp_path / "t")
    header = json.loads((tmp_path / "t" / "trace.json").read_text())
    (tmp_path / "t" / "trace.json").write_text(json.dumps({**header, "version": version}))
    with pytest.raises(TraceRefused, match="trace version"):
        FolderTrace(tmp_path / "t")


def test_something_else_is_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trace.json").write_text('{"format": "other"}')
    for name, why in (
        ("file", "not a folder"),
        ("none", "not a folder"),
        ("empty", "No such file"),
        ("other", "header"),
    ):
        with pytest.raises(TraceRefused, match=why):
            FolderTrace(tmp_path / name)


def in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is large and taken to lie on a GPU."""
    monkeypatch.setattr("fedspill.trace_folder.is_large", lambda tensors: True)
    monkeypatch.setattr("fedspill.trace_folder.on_gpu", lambda tensors: True)


def test_what_is_written_in_the_background_is_what_was_said_and_no_thread_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_background(monkeypatch)
    before = threading.active_count()
    record(tmp_path / "t")
    assert threading.active_count() == before
    monkeypatch.undo()
    memory, _ = recorded()
    assert flat(FolderTrace(tmp_path / "t")) == flat(memory)
    assert len(list((tmp_path / "t" / "rounds").rglob("*/*.safetensors"))) == len(list(memory.messages()))


def test_a_message_that_cannot_be_written_in_the_background_drops_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_background(monkeypatch)
    write, before = trace_folder.write_tensors, threading.active_count()

    def failing(path: Path, tensors: Mapping[str, Tensor]) -> str:
        if path.name == "000003.safetensors" and path.parent.name == "000001":
            raise NotWritten("The disk is full.")
        return write(path, tensors)

    monkeypatch.setattr("fedspill.trace_folder.write_tensors", failing)
    with pytest.raises(NotWritten, match="full"):
        record(tmp_path / "t")
    assert threading.active_count() == before
    assert not (tmp_path / "t" / "rounds" / "000001").exists()
    monkeypatch.undo()
    assert {m.round for m in FolderTrace(tmp_path / "t", partial=True).messages()} == {0}
