"""Workers: jobs run in processes of their own, each with one torch thread, a time limit and a memory limit."""

from __future__ import annotations

import json
import os
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from pydantic import ValidationError

from fedspill.audit.fork_server import fork
from fedspill.audit.jobs import Job
from fedspill.audit.outcomes import JobOutcome
from fedspill.audit.process_tree import is_dead, memory_of
from fedspill.audit.target import Target
from fedspill.audit.worker_process import HEAD, frame
from fedspill.deployment.plan import LimitsPart

MALFORMED = "its process gave a malformed answer"
MOST_JSON = 1 << 30
_GLANCE = 0.25  # seconds between two looks at time and memory; an answer is taken when it comes


@dataclass(frozen=True)
class Done:
    """A job, what came of it, and how long it took."""

    job: Job
    outcome: JobOutcome
    seconds: float


class Workers(ABC):
    """Whoever runs jobs; the same job gives the same outcome, whoever does it and in whatever order."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """The jobs in whatever order they end."""

    @abstractmethod
    def close(self) -> None:
        """Ends every worker at once."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class LocalWorkers(Workers):
    """Worker processes on this machine; their attacks find nothing in `hidden` folders."""

    def __init__(self, target: Target, count: int, limits: LimitsPart, hidden: Sequence[Path] = ()) -> None:
        self._target = target
        self._count = count
        self._limits = limits
        self._hidden = hidden
        self._idle: list[Worker] = []
        self._busy: dict[int, tuple[Worker, Job]] = {}

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        waiting = list(reversed(jobs))
        with selectors.DefaultSelector() as ready:
            while waiting or self._busy:
                while waiting and len(self._busy) < self._count:
                    worker = self._idle.pop() if self._idle else Worker(self._target, self._limits, self._hidden)
                    job = waiting.pop()
                    worker.start(job.as_json())
                    ready.register(worker.fileno, selectors.EVENT_READ, worker.fileno)
                    self._busy[worker.fileno] = (worker, job)
                ready.select(_GLANCE)
                for number, (worker, job) in list(self._busy.items()):
                    answer = worker.poll()
                    if answer is None:
                        continue
                    ready.unregister(number)
                    del self._busy[number]
                    if job.runs_foreign_code():
                        worker.kill()
                    elif worker.alive:
                        self._idle.append(worker)
                    yield Done(job, *_parsed(job, *answer))

    def close(self) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.kill()
        self._idle, self._busy = [], {}


@final
class Worker:
    """One process and its owner's side of the two pipes."""

    def __init__(self, target: Target, limits: LimitsPart, hidden: Sequence[Path]) -> None:
        self._limits = limits
        self._process = fork("worker")
        self.fileno = self._process.answers.fileno()
        os.set_blocking(self.fileno, False)
        self._buffer = b""
        self._ready = False
        self._deadline = 0.0
        said = {"target": target.absolute().as_json(), "hidden": [str(folder) for folder in hidden]}
        self._send({"environment": dict(os.environ), **said})

    @property
    def alive(self) -> bool:
        return not self._process.orders.closed and not is_dead(self._process.pid)

    def start(self, job: dict[str, Any]) -> None:
        """Hands over a job; its time counts from when the worker is ready for it."""
        self._deadline = time.monotonic() + self._limits.seconds
        self._send(job)

    def poll(self) -> tuple[dict[str, Any], float] | None:
        """What came of the job and in how many seconds, or None while it runs within its limits."""
        ended = self._read()
        while (message := self._next()) is not None:
            if message.get("ready") is True:
                self._ready = True
                self._deadline = time.monotonic() + self._limits.seconds
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
            return _errored(f"stopped after {self._limits.seconds:g} s, its time limit"), self._limits.seconds
        if memory_of(self._process.pid) > self._limits.memory_mb << 20:
            self.kill()
            return _errored(f"stopped above {self._limits.memory_mb} MB, its memory limit"), 0.0
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


def _parsed(job: Job, answer: dict[str, Any], seconds: float) -> tuple[JobOutcome, float]:
    """The answer as what such a job comes to; one that is none is a fault of the process."""
    try:
        return job.outcome.model_validate(answer), seconds
    except ValidationError:
        return job.outcome(status="errored", why=MALFORMED), seconds
