"""Workers on a Ray cluster: every unit is a task that Ray places where there is room, and places anew when a node dies.

A task (ray_unit.py) hands its unit to a worker process of its own node, as on one machine: limits, the seal around
attacks and results are the same. Jobs and outcomes travel as JSON text, since nothing of an outcome is large.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any, final

from fedspill.audit.data_digest import data_digest
from fedspill.audit.jobs import Job
from fedspill.audit.ray_unit import UnitSpec, forget_recordings, run_unit, start_early
from fedspill.audit.target import Target
from fedspill.audit.unit_needs import UnitNeeds
from fedspill.audit.worker_pool import Done, Take, Workers, parsed
from fedspill.deployment.plan import LimitsPart
from fedspill.errors import FedspillError, UsageError

RETRIES = 5  # of one unit, each on a node that then died; who loses more nodes than that has no cluster
PATIENCE = 60.0  # seconds that no node has had room for a unit, until the cluster is given up
STORE_BYTES = 80 << 20  # what Ray at least wants for objects; ours are small
_GLANCE = 1.0
_LEAST_IN_HAND = 2  # a cluster that has no room for the moment is asked all the same


class ClusterLost(FedspillError):
    """The cluster cannot be reached any more, or has no room left; what was done is stored."""


@final
class RayWorkers(Workers):
    """`--ray ADDRESS`; "local" starts a cluster on this machine for the time of the audit.

    The audit's folder need not be shared: a machine that does not see it records the federation again for itself, from
    the same seed, and forgets it at the end. Data and code must be the same on every machine; one that has others is
    found out before its first unit.

    Args:
        count: At most so many units at a time; None: as many as the cluster has room for.
    """

    def __init__(self, target: Target, address: str, count: int | None, limits: LimitsPart, needs: UnitNeeds) -> None:
        if target.plan.federation.engine == "flower":
            raise UsageError(
                "Flower's simulation starts a Ray of its own, and is not run on a node of another.",
                remedy="Leave --ray out, or record the federation first and audit its recording with --ray.",
            )
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError("Ray is not installed.", remedy="Install it with: pip install 'fedspill[ray]'.") from None
        self._ray, self._count, self._needs = ray, count, needs
        self._target, self._limits = target.absolute(), limits
        self._alone: set[str] = set()  # nodes that recorded for themselves
        here = {"num_cpus": count, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        start = here if address == "local" else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of Ray, about its own next versions
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", **start)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"There is no Ray cluster at {address!r}: {error}.") from None
        if not self._has_room():
            self.close()
            raise UsageError(
                f"No node of the cluster has room for one unit: {needs.words()}.",
                remedy="Add such a node, or lower [limits] in the plan.",
            )
        needed = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory}
        self._task = ray.remote(run_unit).options(max_retries=RETRIES, **needed)
        if not needs.gpus:  # there Ray gives every unit a process of its own
            early = ray.remote(start_early).options(**needed)
            self._early = [early.remote() for _ in range(min(self._room(), count or self._room()))]

    @cached_property
    def _spec(self) -> str:
        digest = data_digest(self._target)
        spec = UnitSpec(self._target.as_json(), self._limits.seconds, self._limits.memory_mb, digest)
        return json.dumps(asdict(spec))

    def run(self, take: Take) -> Iterator[Done]:
        crowded = 0.0
        running: dict[Any, Job] = {}
        while True:
            while len(running) < self._most() and (job := take()) is not None:
                told = json.dumps(job.as_json())
                running[self._task.remote(self._spec, told, not job.runs_foreign_code())] = job
            if not running:
                return
            # One at a time: what it makes ready may be more urgent than what waits.
            ready, _ = self._ray.wait(list(running), timeout=_GLANCE)
            for answer in ready:
                yield self._done(running.pop(answer), answer)
            crowded = 0.0 if ready or self._has_room() else crowded + _GLANCE
            if crowded > PATIENCE:
                raise ClusterLost(
                    f"No node of the cluster has room for a unit any more: {self._needs.words()}.", remedy=_AGAIN
                )

    def _done(self, job: Job, answer: Any) -> Done:
        """What came of a task; a machine that cannot do this audit ends it, so that no result is made by half of it."""
        try:
            told = json.loads(self._ray.get(answer))
        except self._ray.exceptions.RayTaskError as error:
            raise UsageError(
                f"A machine of the cluster cannot run Fedspill: {type(error.cause).__name__}.",
                remedy="Install the same fedspill on all of them.",
            ) from None
        except self._ray.exceptions.RayError as error:
            raise ClusterLost(f"The cluster lost a unit: {type(error).__name__}.", remedy=_AGAIN) from None
        if "refused" in told:
            raise UsageError(f"Machine {told['host']} of the cluster cannot do this audit: {told['refused']}")
        if told["alone"]:
            self._alone.add(told["node"])
        return parsed(job, told["outcome"], told["seconds"])

    def _most(self) -> int:
        """Units in hand at a time: those that run, and as many that wait in Ray, so that no node waits for us and a
        cluster that can grow sees that it should. The rest waits here, where what is urgent goes first.
        """
        return self._count if self._count is not None else max(2 * self._room(), _LEAST_IN_HAND)

    def _room(self) -> int:
        """How many units the nodes that live can hold together."""
        return sum(self._needs.times(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

    def _has_room(self) -> bool:
        """Whether any node that lives could hold one unit, were it idle."""
        return self._room() > 0

    def close(self) -> None:
        if self._alone:
            with suppress(Exception):  # the cluster may be gone, and what it holds with it
                self._forget()
        self._ray.shutdown()

    def _forget(self) -> None:
        """Has every node that recorded for itself remove that."""
        on = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        forget = self._ray.remote(forget_recordings)
        asked = [
            forget.options(num_cpus=0, scheduling_strategy=on(node, soft=False)).remote(str(self._target.folder))
            for node in sorted(self._alone)
        ]
        self._ray.wait(asked, num_returns=len(asked), timeout=PATIENCE)


_AGAIN = "What was done is stored: run the same command again."
