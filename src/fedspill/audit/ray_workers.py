"""Workers on a Ray cluster: each actor holds one worker process, so that limits and results are as on one machine."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, final

from fedspill.audit.jobs import Job, job_from
from fedspill.audit.target import Target
from fedspill.audit.worker_pool import Done, LocalWorkers, Workers
from fedspill.deployment.plan import LimitsPart
from fedspill.errors import FedspillError, UsageError


class ClusterLost(FedspillError):
    """The cluster cannot be reached any more; what was done is stored."""


@final
class RayWorkers(Workers):
    """`--ray ADDRESS`; "local" starts a cluster on this machine for the time of the audit.

    Jobs and outcomes travel as JSON text. The audit's folder need not be shared: a machine that does not see it records
    the federation again for itself, from the same seed.
    """

    def __init__(self, target: Target, address: str, count: int, limits: LimitsPart) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError("Ray is not installed.", remedy="Install it with: pip install 'fedspill[ray]'.") from None
        self._ray = ray
        where = {"num_cpus": count} if address == "local" else {}
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **where)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"There is no Ray cluster at {address!r}: {error}.") from None
        holder = ray.remote(num_cpus=1, max_restarts=0)(Holder)
        spec = json.dumps([target.absolute().as_json(), limits.model_dump()])
        self._actors = [holder.remote(spec) for _ in range(count)]

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        waiting, idle = list(reversed(jobs)), list(self._actors)
        running: dict[Any, tuple[Any, Job]] = {}
        while waiting or running:
            while waiting and idle:
                actor, job = idle.pop(), waiting.pop()
                running[actor.run.remote(json.dumps(job.as_json()))] = (actor, job)
            ready, _ = self._ray.wait(list(running), timeout=1.0)
            for answer in ready:
                actor, job = running.pop(answer)
                idle.append(actor)
                try:
                    outcome, seconds = json.loads(self._ray.get(answer))
                except self._ray.exceptions.RayError as error:
                    raise ClusterLost(
                        f"The cluster lost a worker: {type(error).__name__}.", remedy="Run the same command again."
                    ) from None
                yield Done(job, job.outcome.model_validate(outcome), seconds)

    def close(self) -> None:
        with suppress(Exception):
            for actor in self._actors:
                self._ray.kill(actor)
        self._ray.shutdown()


@final
class Holder:
    """What runs on the cluster: one worker process and its limits."""

    def __init__(self, spec: str) -> None:
        target, limits = json.loads(spec)
        self._workers = LocalWorkers(Target.from_json(target), 1, LimitsPart.model_validate(limits))

    def run(self, job: str) -> str:
        done = next(self._workers.run([job_from(json.loads(job))]))
        return json.dumps([done.outcome.model_dump(mode="json"), done.seconds])
