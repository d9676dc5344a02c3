"""Writes the rounds of a running federation to a trace in a thread of its own, so that training never waits for it.

A round that cannot be written becomes an event of the trace, never an exception in the training.
"""

from __future__ import annotations

import atexit
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, final

from fedspill.adapters.round_messages import RoundMessages, SeenRound
from fedspill.errors import FedspillError
from fedspill.files import write_bytes
from fedspill.messages import SERVER, Message
from fedspill.tensor_file import bytes_of
from fedspill.threat import ThreatModel
from fedspill.trace import KEEP_ALL, Event, Keep, Recorder
from fedspill.trace_folder import FolderRecorder

_RESERVE_BYTES = 256 << 10  # kept free, so that the last events can still be written when the disk is full
_CLOSE_TIMEOUT = 120.0  # seconds to wait for the last rounds to be written


class TraceDestination(ABC):
    """Where the recorder comes from that the rounds are written to."""

    @abstractmethod
    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        """The recorder to write to; called once, when the first round is known."""

    @abstractmethod
    def free_reserve(self) -> None:
        """Frees the space that was held in reserve; called before the last events are written."""


@final
class GivenRecorder(TraceDestination):
    """A recorder that the caller made and owns."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        return self._recorder

    def free_reserve(self) -> None:
        pass


@final
class NewTraceFolder(TraceDestination):
    """A new folder. A name that is taken gets a number, so that a second run never stops for the first one's trace."""

    def __init__(self, path: Path, keep: Keep = KEEP_ALL) -> None:
        self._keep = keep
        self.path = _make_folder(path)
        self._reserve = self.path / "reserve"

    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        # The folder was empty when we took it, so whatever is in it now is left from an attempt to open that failed.
        for leftover in self.path.iterdir():
            leftover.unlink()
        recorder = FolderRecorder(self.path, protocol, self._keep)
        with suppress(FedspillError, OSError):  # without a reserve, a full disk leaves the trace unfinished: no worse
            write_bytes(self._reserve, bytes(_RESERVE_BYTES))
        return recorder

    def free_reserve(self) -> None:
        self._reserve.unlink(missing_ok=True)


def _make_folder(path: Path) -> Path:
    """An empty folder of that name, or of the first free number behind it."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        name = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        try:
            name.mkdir(mode=0o700)
            return name
        except FileExistsError:
            if name.is_dir() and not any(name.iterdir()):
                return name
    raise FileExistsError(f"{path} and 9,999 numbered names beside it are taken.")


@dataclass(frozen=True)
class RecordingLimits:
    """What a recording may cost."""

    disk: int = 20 << 30  # bytes in all
    memory: int = 1 << 30  # bytes of rounds that wait to be written


@dataclass
class UnrecordedRounds:
    """Consecutive rounds that are not in the trace, and why the first of them is not."""

    first: int = -1
    last: int = -1
    why: str = ""

    def add(self, number: int, why: str) -> None:
        if not self.why:
            self.first, self.why = number, why
        self.last = number

    def events(self, number: int) -> list[Event]:
        """What the trace says of them, as part of round `number`: the next round that can be written."""
        if not self.why:
            return []
        rounds = f"round {self.first} was" if self.first == self.last else f"rounds {self.first} to {self.last} were"
        return [Event(number, SERVER, f"{rounds} not recorded: {self.why}")]


@final
class BackgroundWriter:
    """One recording. `put` queues a round and returns at once; `close` waits for what is still to be written."""

    def __init__(
        self,
        destination: TraceDestination,
        to_messages: Callable[[Any], RoundMessages],
        protocol: Callable[[RoundMessages], Mapping[str, Any]],
        threat: ThreatModel,
        log: logging.Logger,
        keep: Keep = KEEP_ALL,
        limits: RecordingLimits | None = None,
    ) -> None:
        self._destination = destination
        self._to_messages = to_messages
        self._protocol = protocol
        self._threat = threat
        self._log = log
        self._keep = keep
        self._limits = limits or RecordingLimits()
        self._recorder: Recorder | None = None
        # A round to write, the number of a round that was given up and why, or None at the end.
        self._queue: SimpleQueue[SeenRound | tuple[int, str] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes_waiting = 0  # in the queue
        self._bytes_written = 0
        self._unrecorded = UnrecordedRounds()  # since the last round that was written
        self.rounds_recorded = 0
        self._thread = threading.Thread(target=self._run, name="fedspill background writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, round_seen: SeenRound) -> None:
        """Queues a round. Training never waits: when too much waits to be written, the round is given up."""
        size = round_seen.nbytes
        with self._lock:
            if self._bytes_waiting and self._bytes_waiting + size > self._limits.memory:
                self._queue.put((round_seen.number, f"{self._bytes_waiting:,} bytes wait for the disk already"))
                return
            self._bytes_waiting += size
        self._queue.put(round_seen)

    def close(self) -> bool:
        """Finishes the recording; False if it could not be finished in time."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_CLOSE_TIMEOUT)
        if self._thread.is_alive():
            self._log.error(
                "fedspill: the recording was not finished within %.0f s; open it with --partial.", _CLOSE_TIMEOUT
            )
        return not self._thread.is_alive()

    def _run(self) -> None:
        """What the thread does until `close`: nothing that goes wrong here may reach the training."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, tuple):
                self._give_up(*item)
                continue
            try:
                self._write(item)
            except Exception as error:
                self._give_up(item.number, _reason(error))
            with self._lock:
                self._bytes_waiting -= item.nbytes
        try:
            self._finish()
        except Exception as error:
            self._log.error("fedspill: the recording could not be finished: %s", _reason(error))

    def _write(self, round_seen: SeenRound) -> None:
        content = self._to_messages(round_seen)
        visible = [message for message in content.messages if self._threat.sees_message(message)]
        recorder = self._open(content)
        size = sum(self._bytes_kept(message) for message in visible)
        if self._bytes_written + size > self._limits.disk:
            raise FedspillError(f"the recording may take {self._limits.disk:,} bytes, this round would exceed them")
        for message in visible:
            recorder.say(message)
        for (origin, name), value in content.facts.items():
            recorder.note_truth(origin, name, value)
        for event in self._unrecorded.events(round_seen.number) + content.events:
            recorder.note_event(event)
        recorder.end_round(round_seen.number)
        self._unrecorded = UnrecordedRounds()
        self._bytes_written += size
        self.rounds_recorded += 1

    def _open(self, content: RoundMessages) -> Recorder:
        if self._recorder is None:
            self._recorder = self._destination.open(self._protocol(content))
        return self._recorder

    def _bytes_kept(self, message: Message) -> int:
        """Bytes of a message that the recorder will write."""
        if not self._keep.wants(message):
            return 0
        return bytes_of(self._keep.wanted(message))

    def _give_up(self, number: int, why: str) -> None:
        """Notes a round that is not in the trace; the next round that is written says so, or else the last event."""
        self._log.error("fedspill: round %d is not recorded: %s", number, why)
        self._unrecorded.add(number, why)

    def _finish(self) -> None:
        recorder = self._open(RoundMessages([], [], {}))
        self._destination.free_reserve()
        for event in self._unrecorded.events(self._unrecorded.last):
            recorder.note_event(event)
            recorder.end_round(event.round)
        recorder.finish()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
