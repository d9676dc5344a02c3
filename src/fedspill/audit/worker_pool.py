"""Workers: jobs run in processes of their own, each with one torch thread, a time limit and a memory limit."""

from __future__ import annotations

import selectors
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias, final

from pydantic import ValidationError

from fedspill.audit.jobs import Job
from fedspill.audit.outcomes import JobOutcome
from fedspill.audit.target import Target
from fedspill.audit.worker import GLANCE, MALFORMED, Worker, WorkerOrder
from fedspill.deployment.plan import LimitsPart


@dataclass(frozen=True)
class Done:
    """A job, what came of it, and how long it took."""

    job: Job
    outcome: JobOutcome
    seconds: float


# The next job that can be started, the most urgent one; None where there is none now. What came of those that run may
# make others ready.
Take: TypeAlias = Callable[[], Job | None]


class Workers(ABC):
    """Whoever runs jobs; the same job gives the same outcome, whoever does it and in whatever order."""

    @abstractmethod
    def run(self, take: Take) -> Iterator[Done]:
        """Jobs in whatever order they end, until there is none while none runs."""

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
    """Worker processes on this machine."""

    def __init__(self, target: Target, count: int, limits: LimitsPart) -> None:
        self._order = WorkerOrder(target.absolute().as_json(), limits.seconds, limits.memory_mb)
        self._count = count
        self._idle: list[Worker] = []
        self._busy: dict[int, tuple[Worker, Job]] = {}

    def run(self, take: Take) -> Iterator[Done]:
        with selectors.DefaultSelector() as ready:
            while True:
                while len(self._busy) < self._count and (job := take()) is not None:
                    worker = self._idle.pop() if self._idle else Worker(self._order)
                    worker.start(job.as_json())
                    ready.register(worker.fileno, selectors.EVENT_READ, worker.fileno)
                    self._busy[worker.fileno] = (worker, job)
                if not self._busy:
                    return
                ready.select(GLANCE)
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
                    yield parsed(job, *answer)

    def close(self) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.kill()
        self._idle, self._busy = [], {}


def parsed(job: Job, answer: dict[str, Any], seconds: float) -> Done:
    """The answer as what such a job comes to; one that is none is a fault of the process."""
    try:
        return Done(job, job.outcome.model_validate(answer), seconds)
    except ValidationError:
        return Done(job, job.outcome(status="errored", why=MALFORMED), seconds)
