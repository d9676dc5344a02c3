"""Clients fail, strangers send rubbish, the disk fills: training goes on, and the trace says what happened."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg
from inprocess import Silence
from little import Little, all_nodes, node, same

import fedspill.files
import fedspill.trace_folder
from fedspill.adapters.background_writer import RecordingLimits
from fedspill.errors import InputRefused
from fedspill.flower import record
from fedspill.flower.arrays import read_array
from fedspill.messages import Message as TraceMessage
from fedspill.trace import MemoryTrace, Recorder
from fedspill.trace_folder import FolderTrace

Spoil = Callable[[ArrayRecord], ArrayRecord]


def poison(value: float) -> Spoil:
    def spoil(arrays: ArrayRecord) -> ArrayRecord:
        state = arrays.to_torch_state_dict()
        state["2.bias"][0] = value
        return ArrayRecord(state)

    return spoil


def reshaped(shape: tuple[int, ...]) -> Spoil:
    return lambda arrays: ArrayRecord({**arrays, "2.bias": Array(np.zeros(shape, np.float32))})


def forged(data: bytes) -> Spoil:
    return lambda arrays: ArrayRecord({**arrays, "2.bias": Array("float32", (3,), "numpy.ndarray", data)})


def bomb() -> bytes:
    """Declares eight terabytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    return file.getvalue()


RUBBISH: dict[str, tuple[Spoil, str]] = {
    "nan": (poison(float("nan")), "has NaN at '2.bias'"),
    "infinity": (poison(float("inf")), "has an infinite value at '2.bias'"),
    "overflow": (poison(1e38), "overflows at '2.bias'"),
    "wrong shape": (reshaped((5,)), "has shape (5,) at '2.bias', expected (3,)"),
    "shape that broadcasts": (reshaped((1,)), "has shape (1,) at '2.bias', expected (3,)"),
    "missing": (lambda arrays: ArrayRecord({n: a for n, a in arrays.items() if n != "2.bias"}), "lacks tensor"),
    "unknown": (lambda arrays: ArrayRecord({**arrays, "extra": Array(np.zeros(2))}), "has an unknown tensor 'extra'"),
    "empty": (lambda arrays: ArrayRecord(), "is empty"),
    "not an array": (forged(b"rubbish"), "cannot be read"),
    "bomb": (forged(bomb()), "declares shape"),
    "zip": (forged(b"PK\x03\x04" + bytes(100)), "cannot be read"),
}


@pytest.mark.parametrize("name", RUBBISH)
def test_what_one_client_sends_stops_nobody_and_is_an_event(tmp_path: Path, name: str) -> None:
    spoil, said = RUBBISH[name]

    def misbehave(number: int, index: int, reply: Message) -> Message:
        if (number, index) == (1, 2):
            reply.content["arrays"] = spoil(reply.content["arrays"])
        return reply

    little = Little(misbehave=misbehave)
    final = little.run(record(all_nodes(), tmp_path / "trace", leave_out_unsound=True))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in final.values())
    trace = FolderTrace(tmp_path / "trace")
    assert [len(list(trace.messages("update", round=number))) for number in range(3)] == [4, 3, 4]
    (event,) = trace.events
    assert (event.round, event.party) == (1, f"client:{node(2)}")
    assert event.what.startswith("left out: its update ")
    assert said in event.what


def test_without_leaving_out_flower_does_as_it_always_does(tmp_path: Path) -> None:
    def misbehave(number: int, index: int, reply: Message) -> Message:
        if (number, index) == (1, 2):
            reply.content["arrays"] = poison(float("nan"))(reply.content["arrays"])
        return reply

    final = Little(misbehave=misbehave).run(record(all_nodes(), tmp_path / "trace"))
    assert bool(torch.isnan(final["2.bias"]).any())  # one client's NaN is the model's NaN: not our doing, but noted
    events = FolderTrace(tmp_path / "trace").events
    assert events[0].what == "passed on: its update has NaN at '2.bias'"


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -float("inf"), 0, -20, 10**18, 0.5])
def test_a_number_of_examples_that_cannot_be_spoils_nothing_and_is_an_event(tmp_path: Path, said: float) -> None:
    def misbehave(number: int, index: int, reply: Message) -> Message:
        if (number, index) == (1, 2):
            reply.content["metrics"]["num-examples"] = said
        return reply

    final = Little(misbehave=misbehave).run(record(all_nodes(), tmp_path / "trace", leave_out_unsound=True))
    assert all(bool(tensor.isfinite().all()) for tensor in final.values())
    trace = FolderTrace(tmp_path / "trace")
    assert [len(list(trace.messages("update", round=number))) for number in range(3)] == [4, 3, 4]
    (event,) = trace.events
    assert (event.round, event.party) == (1, f"client:{node(2)}")
    assert event.what.startswith("left out: it says that it comes from")


def test_what_a_client_says_of_its_error_stays_out_of_the_trace(tmp_path: Path) -> None:
    def misbehave(number: int, index: int, reply: Message) -> Message:
        if number == 1 and index == 0:
            raise ValueError("patient 4711 has a cough")
        return reply

    Little(misbehave=misbehave).run(record(all_nodes(), tmp_path / "trace"))
    (event,) = FolderTrace(tmp_path / "trace").events
    assert event.what == "failed: ValueError"
    for path in (tmp_path / "trace").rglob("*"):
        assert not path.is_file() or b"4711" not in path.read_bytes()


def test_clients_that_raise_or_die_are_events(tmp_path: Path) -> None:
    def misbehave(number: int, index: int, reply: Message) -> Message:
        if number == 1 and index == 0:
            raise RuntimeError("out of memory")
        if number == 2 and index == 3:
            raise Silence
        return reply

    Little(misbehave=misbehave).run(record(all_nodes(), tmp_path / "trace"))
    trace = FolderTrace(tmp_path / "trace")
    assert [len(list(trace.messages("update", round=number))) for number in range(3)] == [4, 3, 3]
    assert [(event.round, event.party, event.what) for event in trace.events] == [
        (1, f"client:{node(0)}", "failed: RuntimeError"),
        (2, f"client:{node(3)}", "did not answer"),
    ]


def test_a_round_without_any_answer_is_recorded_with_its_model_alone(tmp_path: Path) -> None:
    def misbehave(number: int, index: int, reply: Message) -> Message:
        if number == 0:
            raise Silence
        return reply

    Little(misbehave=misbehave).run(record(all_nodes(), tmp_path / "trace"))
    trace = FolderTrace(tmp_path / "trace")
    assert [message.kind for message in trace.messages(round=0)] == ["model"]
    assert len(trace.events) == 4
    assert trace.protocol["head_weight"] == "2.weight"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """A folder with room for so many bytes; what is deleted can be used again."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(room: int) -> Path:
        write, append = fedspill.files._write, fedspill.trace_folder.FolderRecorder._line

        def refuse(size: int) -> None:
            used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if used + size > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def guarded_write(path: Path, pieces: Any) -> str:
            refuse(sum(map(len, pieces)))
            return write(path, pieces)

        def guarded_append(self: Any, content: dict[str, Any]) -> None:
            refuse(1000)
            append(self, content)

        monkeypatch.setattr(fedspill.files, "_write", guarded_write)
        monkeypatch.setattr(fedspill.trace_folder.FolderRecorder, "_line", guarded_append)
        return folder

    return make


def test_when_the_disk_fills_training_goes_on_and_the_trace_names_the_lost_rounds(
    disk: Callable[[int], Path], little: Little, caplog: pytest.LogCaptureFixture
) -> None:
    little.rounds = 6
    plain = little.run(all_nodes())
    room = 256 * 1024 + 20_000  # the reserve, the header, and a few rounds of about 4,000 bytes
    folder = disk(room)
    with caplog.at_level(logging.ERROR, "flwr"):
        assert same(little.run(record(all_nodes(), folder / "trace")), plain)
    trace = FolderTrace(folder / "trace")  # finished and whole
    recorded = {message.round for message in trace.messages()}
    assert recorded
    assert recorded | lost_rounds(trace) == set(range(6))
    assert not recorded & lost_rounds(trace)
    assert all("No space left" in event.what for event in trace.events)
    assert "is not recorded" in caplog.text


def lost_rounds(trace: FolderTrace) -> set[int]:
    """As the events say: "round 3 was not recorded", "rounds 3 to 5 were not recorded"."""
    lost: set[int] = set()
    for event in trace.events:
        found = re.match(r"rounds? (\d+)(?: to (\d+))? (?:was|were) not recorded: ", event.what)
        assert found, event
        lost |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return lost


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_real_full_disk_costs_rounds_and_the_trace_names_them(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", tmp_path / "small"], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a small disk")
    try:
        little = Little(rounds=60)
        assert same(little.run(record(all_nodes(), tmp_path / "small" / "trace")), little.run(all_nodes()))
        trace = FolderTrace(tmp_path / "small" / "trace")
        recorded = {message.round for message in trace.messages()}
        assert recorded | lost_rounds(trace) == set(range(60))
        assert min(lost_rounds(trace)) > 0
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


@pytest.mark.parametrize("fails_at", range(12))
def test_when_any_one_write_fails_training_goes_on_and_lost_rounds_are_named(
    tmp_path: Path, little: Little, monkeypatch: pytest.MonkeyPatch, fails_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The n-th call that touches the disk fails, the others do not."""
    calls = 0
    replace = os.replace

    def sometimes(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at + 1:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    plain = little.run(all_nodes())
    monkeypatch.setattr(os, "replace", sometimes)
    assert same(little.run(record(all_nodes(), tmp_path / "trace")), plain)
    folders = sorted(path for path in tmp_path.iterdir() if (path / "index.jsonl").is_file())
    if not folders:
        assert "not recorded" in caplog.text or "could not be finished" in caplog.text
        return
    trace = FolderTrace(folders[-1])
    assert {message.round for message in trace.messages()} | lost_rounds(trace) == {0, 1, 2}


def test_half_a_line_in_the_index_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = fedspill.trace_folder.FolderRecorder(tmp_path / "trace", {})

    def say(number: int) -> None:
        recorder.say(TraceMessage(number, "server", "all", "model", {"w": torch.ones(2)}))
        recorder.end_round(number)

    say(0)
    real_open = open

    def failing_open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real_open(path, mode, *args, **kwargs)
        if "a" not in mode:
            return file

        class HalfWritten:
            def __enter__(self) -> HalfWritten:
                return self

            def __exit__(self, *error: object) -> None:
                file.close()

            def write(self, content: Any) -> int:
                if file.tell() > size:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return int(file.write(content[: len(content) // 2]))

            def seek(self, *where: int) -> int:
                return int(file.seek(*where))

            def truncate(self, size: int) -> int:
                return int(file.truncate(size))

        return HalfWritten()

    size = (tmp_path / "trace" / "index.jsonl").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", failing_open)
        with pytest.raises(fedspill.errors.FedspillError):
            say(1)
    assert (tmp_path / "trace" / "index.jsonl").stat().st_size == size
    say(2)
    recorder.finish()
    assert [message.round for message in FolderTrace(tmp_path / "trace").messages()] == [0, 2]


def test_a_folder_that_cannot_be_made_is_logged_and_training_goes_on(
    tmp_path: Path, little: Little, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    plain = little.run(all_nodes())
    with caplog.at_level(logging.ERROR, "flwr"):
        assert same(little.run(record(all_nodes(), tmp_path / "file" / "trace")), plain)
    assert "round 0 is not recorded" in caplog.text


class Broken(Recorder):
    """Raises at every call."""

    def say(self, *args: Any) -> None:
        raise RuntimeError("broken")

    note_truth = note_event = end_round = finish = say


def test_a_recorder_that_always_raises_does_not_change_training(little: Little) -> None:
    assert same(little.run(record(all_nodes(), Broken())), little.run(all_nodes()))


def test_a_message_without_a_clear_model_is_not_recorded_and_not_stopped(
    tmp_path: Path, little: Little, caplog: pytest.LogCaptureFixture
) -> None:
    class Two(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
            messages = list(super().configure_train(*args, **kwargs))
            messages[0].content["control"] = ArrayRecord([np.zeros(3)])
            return messages

    with caplog.at_level(logging.ERROR, "flwr"):
        little.run(record(Two(fraction_evaluate=0.0), tmp_path / "unclear"))
    assert "expected one ArrayRecord, got 2" in caplog.text
    little.run(record(Two(fraction_evaluate=0.0), tmp_path / "clear", arrays_key="arrays"))
    assert len(list(FolderTrace(tmp_path / "clear").messages("update"))) == 12


def test_training_never_waits_for_a_slow_disk(little: Little) -> None:
    little.rounds = 5
    go = threading.Event()

    class Stuck(Recorder):
        def __init__(self) -> None:
            self.trace = MemoryTrace()

        def say(self, message: TraceMessage) -> None:
            go.wait(60)
            self.trace.say(message)

        def note_truth(self, *args: Any) -> None: ...

        def note_event(self, event: Any) -> None:
            self.trace.note_event(event)

        def end_round(self, number: int) -> None: ...

        def finish(self) -> None: ...

    stuck = Stuck()

    class LetGo(FedAvg):
        """Training is over before the first byte is written."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            result = super().aggregate_train(server_round, replies)
            if server_round == 5:
                go.set()
            return result

    little.run(record(LetGo(fraction_evaluate=0.0), stuck, limits=RecordingLimits(memory=1)))
    assert {message.round for message in stuck.trace.messages()} == {0}
    (event,) = stuck.trace.events
    assert event.what.startswith("rounds 1 to 4 were not recorded: ")
    assert "wait for the disk" in event.what


@pytest.mark.parametrize("dtype", ["O", ">f4", "c8", "U3"])
def test_odd_types_are_refused_by_name(dtype: str) -> None:
    data = io.BytesIO()
    np.save(data, np.zeros(2, dtype), allow_pickle=dtype == "O")
    with pytest.raises(InputRefused, match="'w'"):
        read_array("w", Array(dtype, (2,), "numpy.ndarray", data.getvalue()))
