"""One worker process, seen from its owner: jobs go in as JSON, and come out as JSON within their limits.

Nothing here loads torch, so that a node of a cluster holds it once less for each unit that it runs.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from fedspill.audit.fork_server import fork
from fedspill.audit.process_tree import is_dead, memory_of
from fedspill.errors import UsageError

MALFORMED = "its process gave a malformed answer"
MOST_JSON = 1 << 30
GLANCE = 0.25  # seconds between two looks at time and memory; an answer is taken when it comes
HEAD = struct.Struct("<Q")


def frame(value: object) -> bytes:
    content = json.dumps(value, allow_nan=False).encode()
    return HEAD.pack(len(content)) + content


def read_frame(pipe: BinaryIO) -> Any:
    """The next frame, or None at the end."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    return json.loads(pipe.read(*HEAD.unpack(head)))


@dataclass(frozen=True)
class WorkerOrder:
    """What a worker is told once."""

    target: Mapping[str, Any]  # what is audited, as JSON
    seconds: float  # limits of each job
    memory_mb: int
    hidden: Sequence[Path] = ()  # folders that its attacks shall not find
    digest: str | None = None  # of the data; where it is given, the machine is checked before the first job


@final
class Worker:
    """One process and its owner's side of the two pipes."""

    def __init__(self, started: WorkerOrder) -> None:
        self._order = started
        self._process = fork("worker")
        self.fileno = self._process.answers.fileno()
        os.set_blocking(self.fileno, False)
        self._buffer = b""
        self._ready = False
        self._deadline = 0.0
        said = {"target": started.target, "hidden": [str(folder) for folder in started.hidden]}
        self._send({"environment": dict(os.environ), "digest": started.digest, **said})

    @property
    def alive(self) -> bool:
        return not self._process.orders.closed and not is_dead(self._process.pid)

    def wait(self, seconds: float) -> None:
        """Until it says something, or so long."""
        select.select([self.fileno], [], [], seconds)

    def start(self, job: dict[str, Any]) -> None:
        """Hands over a job; its time counts from when the worker is ready for it."""
        self._deadline = time.monotonic() + self._order.seconds
        self._send(job)

    def poll(self) -> tuple[dict[str, Any], float] | None:
        """What came of the job and in how many seconds, or None while it runs within its limits.

        UsageError: on this machine it would come to other results.
        """
        ended = self._read()
        while (message := self._next()) is not None:
            if message.get("ready") is True:
                self._ready = True
                self._deadline = time.monotonic() + self._order.seconds
            elif isinstance(message.get("refused"), str):
                self.kill()
                raise UsageError(message["refused"])
            elif isinstance(message.get("outcome"), dict) and isinstance(message.get("seconds"), int | float):
                return message["outcome"], float(message["seconds"])
            else:
                self.kill()
                return _errored(MALFORMED), 0.0
        if ended or not self.alive:
            self.kill()
            return _errored("its process ended before it answered"), 0.0
        if time.monotonic() > self._deadline and self._ready:
            self.kill()
            return _errored(f"stopped after {self._order.seconds:g} s, its time limit"), self._order.seconds
        if memory_of(self._process.pid) > self._order.memory_mb << 20:
            self.kill()
            return _errored(f"stopped above {self._order.memory_mb} MB, its memory limit"), 0.0
        return None

    def kill(self) -> None:
        self._process.end()

    def _send(self, value: object) -> None:
        with suppress(BrokenPipeError):  # a process that ended is found out by poll
            self._process.orders.write(frame(value))
            self._process.orders.flush()

    def _read(self) -> bool:
        """Takes in what has come; tells whether the pipe has ended."""
        try:
            while chunk := os.read(self.fileno, 1 << 16):
                self._buffer += chunk
        except BlockingIOError:
            return False
        return True

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < HEAD.size:
            return None
        (length,) = HEAD.unpack(self._buffer[: HEAD.size])
        if length > MOST_JSON:
            return {}
        if len(self._buffer) < HEAD.size + length:
            return None
        content = self._buffer[HEAD.size : HEAD.size + length]
        self._buffer = self._buffer[HEAD.size + length :]
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            return {}
        return message if isinstance(message, dict) else {}


def _errored(why: str) -> dict[str, Any]:
    return {"status": "errored", "why": why}
