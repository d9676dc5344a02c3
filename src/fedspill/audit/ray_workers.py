"""Workers on a Ray cluster: every unit is a task that Ray places where there is room, and places anew when a node dies.

A task hands its unit to a worker process of its own node, as on one machine: limits, the seal around attacks and
results are the same. Jobs and outcomes travel as JSON text, since nothing of an outcome is large.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, final

from fedspill.audit.code_fingerprint import fingerprint
from fedspill.audit.data_digest import data_digest
from fedspill.audit.jobs import Job, job_from
from fedspill.audit.target import Target
from fedspill.audit.unit_needs import UnitNeeds
from fedspill.audit.worker_pool import Done, LocalWorkers, Workers
from fedspill.deployment.plan import LimitsPart
from fedspill.errors import FedspillError, UsageError

RETRIES = 5  # of one unit, each on a node that then died; who loses more nodes than that has no cluster
PATIENCE = 60.0  # seconds that no node has had room for a unit, until the cluster is given up
STORE_BYTES = 80 << 20  # what Ray at least wants for objects; ours are small
_GLANCE = 1.0


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
        self._alone: set[str] = set()  # nodes that recorded for themselves
        target = target.absolute()
        told = [target.as_json(), limits.model_dump(), data_digest(target), os.getcwd(), sys.path]
        self._spec = json.dumps(told)
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
        self._task = ray.remote(run_unit).options(
            num_cpus=needs.cpus, num_gpus=needs.gpus, memory=needs.memory, max_retries=RETRIES
        )

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        waiting, crowded = list(reversed(jobs)), 0.0
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and (self._count is None or len(running) < self._count):
                job = waiting.pop()
                running[self._task.remote(self._spec, json.dumps(job.as_json()))] = job
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
        return Done(job, job.outcome.model_validate(told["outcome"]), told["seconds"])

    def _has_room(self) -> bool:
        """Whether any node that lives could hold one unit, were it idle."""
        return any(self._needs.fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

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
            forget.options(num_cpus=0, scheduling_strategy=on(node, soft=False)).remote(self._spec)
            for node in sorted(self._alone)
        ]
        self._ray.wait(asked, num_returns=len(asked), timeout=PATIENCE)


_AGAIN = "What was done is stored: run the same command again."


def run_unit(spec: str, job: str) -> str:
    """What runs on a node: one unit, in a worker process that is kept for the next ones."""
    ray: Any = importlib.import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    try:
        workers, alone = _workers_here(spec)
    except FedspillError as error:
        return json.dumps({"refused": str(error), "host": os.uname().nodename})
    (done,) = workers.run([job_from(json.loads(job))])
    outcome = done.outcome.model_dump(mode="json")
    return json.dumps({"outcome": outcome, "seconds": done.seconds, "alone": alone, "node": node})


def forget_recordings(spec: str) -> None:
    """Removes what this node recorded for itself."""
    shutil.rmtree(Target.from_json(json.loads(spec)[0]).elsewhere(), ignore_errors=True)


@cache
def _workers_here(spec: str) -> tuple[LocalWorkers, bool]:
    """One worker process of this node; whether it does not see the audit's folder. Checked once for all its units."""
    written, limits, digest, folder, places = json.loads(spec)
    sys.path += [place for place in places if place and place not in sys.path]  # code of one's own, if it is here too
    with suppress(OSError):
        os.chdir(folder)
    target = Target.from_json(written)
    refuse_other_machine(target, digest)
    workers = LocalWorkers(target, 1, LimitsPart.model_validate(limits), _doors_of_ray())
    return workers, not target.folder.is_dir()


def refuse_other_machine(target: Target, digest: str) -> None:
    """Raises where this machine would come to other results than the one that asks: other code, other data."""
    if fingerprint(target.plan) != target.code:
        raise UsageError("its code is another.", remedy="Install the same fedspill, and your own code, on all of them.")
    for path in (target.trace, target.truth, target.nodes):
        if path is not None and not path.exists():
            raise UsageError(f"it does not see {path}.", remedy="Put it on a disk that all of them share.")
    if data_digest(target) != digest:
        raise UsageError(f"its {target.plan.data.name} are other data.", remedy="Give all of them the same data.")


def _doors_of_ray() -> list[Path]:
    """Folders by which a sealed attack could reach Ray, which runs whatever it is told to, and what Ray writes down."""
    ray: Any = importlib.import_module("ray")
    here = ray.get_runtime_context().get_node_id()
    sockets = [Path(node["RayletSocketName"]).parent for node in ray.nodes() if node["NodeID"] == here]
    return [folder for socket in sockets for folder in (socket, socket.with_name("logs"))]
