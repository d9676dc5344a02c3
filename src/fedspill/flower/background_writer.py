"""Tape: rounds written to a trace in the background; what cannot be written becomes an event, never an exception."""

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

from fedspill.errors import FedspillError
from fedspill.files import write_bytes
from fedspill.flower.round_messages import Seen, Told
from fedspill.messages import SERVER, Message
from fedspill.threat import ThreatModel
from fedspill.trace import KEEP_ALL, Event, Keep, Recorder
from fedspill.trace_folder import FolderRecorder

LOG = logging.getLogger("flwr.fedspill")  # Flower shows what its own logger gets

_RESERVE = 256 << 10  # bytes kept for the last words of a recording on a full disk
_PATIENCE = 120.0  # seconds to wait for the last rounds to be written


class Shelf(ABC):
    """Where a tape's recorder comes from."""

    @abstractmethod
    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        """The recorder to write to; called once, when the first round is known."""

    @abstractmethod
    def make_room(self) -> None:
        """Gives up what is held in reserve: called before the last word."""


@final
class Given(Shelf):
    """A recorder that somebody else owns."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        return self._recorder

    def make_room(self) -> None:
        pass


@final
class Folder(Shelf):
    """A new folder. A name that is taken gets a number, so that a second run never stops for the first one's trace."""

    def __init__(self, path: Path, keep: Keep) -> None:
        self._keep = keep
        self.path = _claim(path)
        self._reserve = self.path / "reserve"

    def open(self, protocol: Mapping[str, Any]) -> Recorder:
        for leftover in self.path.iterdir():  # of an attempt that failed; the folder was empty when we took it
            leftover.unlink()
        recorder = FolderRecorder(self.path, protocol, self._keep)
        with suppress(FedspillError, OSError):  # without it, a full disk only leaves the trace unfinished
            write_bytes(self._reserve, bytes(_RESERVE))
        return recorder

    def make_room(self) -> None:
        self._reserve.unlink(missing_ok=True)


def _claim(path: Path) -> Path:
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
class Limits:
    """What a recording may cost."""

    disk: int = 20 << 30  # bytes in all
    memory: int = 1 << 30  # bytes of rounds that wait to be written


@dataclass
class Lost:
    """Rounds that are not in the trace, one after the other, and why the first of them is not."""

    first: int = -1
    last: int = -1
    why: str = ""

    def add(self, number: int, why: str) -> None:
        if not self.why:
            self.first, self.why = number, why
        self.last = number

    def events(self, number: int) -> list[Event]:
        """For the line of round `number` in the index, the next that can be written."""
        if not self.why:
            return []
        rounds = f"round {self.first} was" if self.first == self.last else f"rounds {self.first} to {self.last} were"
        return [Event(number, SERVER, f"{rounds} not recorded: {self.why}")]


@final
class Tape:
    """One recording. `put` takes a round and returns at once; `close` waits for what is still to be written."""

    def __init__(
        self,
        shelf: Shelf,
        tell: Callable[[Seen], Told],
        protocol: Callable[[Told], Mapping[str, Any]],
        threat: ThreatModel,
        keep: Keep = KEEP_ALL,
        limits: Limits | None = None,
    ) -> None:
        self._shelf = shelf
        self._tell = tell
        self._protocol = protocol
        self._threat = threat
        self._keep = keep
        self._limits = limits or Limits()
        self._recorder: Recorder | None = None
        self._queue: SimpleQueue[Seen | tuple[int, str] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0  # bytes in the queue
        self._written = 0
        self._lost = Lost()
        self.recorded = 0
        self._thread = threading.Thread(target=self._run, name="fedspill tape", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, seen: Seen) -> None:
        """Queues a round. Training never waits: when too much waits to be written, the round is given up."""
        size = seen.nbytes
        with self._lock:
            if self._waiting and self._waiting + size > self._limits.memory:
                self._queue.put((seen.number, f"{self._waiting:,} bytes wait for the disk already"))
                return
            self._waiting += size
        self._queue.put(seen)

    def close(self) -> bool:
        """Finishes the recording; False if it could not be finished in time."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            LOG.error("fedspill: the recording was not finished within %.0f s; open it with --partial.", _PATIENCE)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, tuple):
                self._lose(*item)
                continue
            try:
                self._write(item)
            except Exception as error:  # whatever goes wrong here must not reach the training
                self._lose(item.number, _reason(error))
            with self._lock:
                self._waiting -= item.nbytes
        try:
            self._finish()
        except Exception as error:
            LOG.error("fedspill: the recording could not be finished: %s", _reason(error))

    def _write(self, seen: Seen) -> None:
        told = self._tell(seen)
        visible = [message for message in told.messages if self._threat.sees_message(message)]
        recorder = self._open(told)
        size = sum(self._size(message) for message in visible)
        if self._written + size > self._limits.disk:
            raise FedspillError(f"the recording may take {self._limits.disk:,} bytes, this round would exceed them")
        for message in visible:
            recorder.say(message)
        for (origin, name), value in told.facts.items():
            recorder.note_truth(origin, name, value)
        for event in self._lost.events(seen.number) + told.events:
            recorder.note_event(event)
        recorder.end_round(seen.number)
        self._lost = Lost()
        self._written += size
        self.recorded += 1

    def _open(self, told: Told) -> Recorder:
        if self._recorder is None:
            self._recorder = self._shelf.open(self._protocol(told))
        return self._recorder

    def _size(self, message: Message) -> int:
        if not self._keep.wants(message):
            return 0
        wanted = (tensor for name, tensor in message.tensors.items() if self._keep.wants_tensor(name))
        return sum(tensor.numel() * tensor.element_size() for tensor in wanted)

    def _lose(self, number: int, why: str) -> None:
        """A round that is not in the trace; the next line of the index says so, on a full disk the last one."""
        LOG.error("fedspill: round %d is not recorded: %s", number, why)
        self._lost.add(number, why)

    def _finish(self) -> None:
        recorder = self._open(Told([], [], {}))
        self._shelf.make_room()
        for event in self._lost.events(self._lost.last):
            recorder.note_event(event)
            recorder.end_round(event.round)
        recorder.finish()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
