"""What runs on a node of a Ray cluster: one unit, in a worker process that is kept for the next ones.

Nothing here loads torch: the worker's process does, once on each node.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspill.audit.fork_server import start_server
from fedspill.audit.private_folder import elsewhere
from fedspill.audit.worker import GLANCE, Worker, WorkerOrder
from fedspill.errors import FedspillError

_kept: dict[str, Worker] = {}  # by what it was told; one, as long as it lives


@dataclass(frozen=True)
class UnitSpec:
    """What all units of an audit have in common."""

    target: dict[str, Any]
    seconds: float
    memory_mb: int
    digest: str  # of the data
    folder: str = field(default_factory=os.getcwd)
    places: list[str] = field(default_factory=lambda: list(sys.path))  # code of one's own, if it is here too


def start_early() -> None:
    """Has the process start from which workers are copied: it loads torch while others prepare."""
    start_server()


def run_unit(spec: str, job: str, keep: bool) -> str:
    """One unit as JSON; without `keep` nothing else runs in its process afterwards."""
    told = UnitSpec(**json.loads(spec))
    ray: Any = importlib.import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    worker = _kept.pop(spec, None)
    if worker is None or not worker.alive:
        worker = _started(told)
    try:
        outcome, seconds = _answer(worker, job)
    except FedspillError as error:
        return json.dumps({"refused": str(error), "host": os.uname().nodename})
    if keep and worker.alive:
        _kept[spec] = worker
    else:
        worker.kill()
    alone = not Path(told.target["folder"]).is_dir()
    return json.dumps({"outcome": outcome, "seconds": seconds, "alone": alone, "node": node})


def _answer(worker: Worker, job: str) -> tuple[dict[str, Any], float]:
    worker.start(json.loads(job))
    while (answer := worker.poll()) is None:
        worker.wait(GLANCE)
    return answer


def _started(told: UnitSpec) -> Worker:
    sys.path += [place for place in told.places if place and place not in sys.path]
    with suppress(OSError):
        os.chdir(told.folder)
    return Worker(WorkerOrder(told.target, told.seconds, told.memory_mb, _doors_of_ray(), told.digest))


def _doors_of_ray() -> list[Path]:
    """Folders by which a sealed attack could reach Ray, which runs whatever it is told to, and what Ray writes down."""
    ray: Any = importlib.import_module("ray")
    here = ray.get_runtime_context().get_node_id()
    sockets = [Path(node["RayletSocketName"]).parent for node in ray.nodes() if node["NodeID"] == here]
    return [folder for socket in sockets for folder in (socket, socket.with_name("logs"))]


def forget_recordings(folder: str) -> None:
    """Removes what this node recorded for itself, in the place of that folder."""
    shutil.rmtree(elsewhere(Path(folder)), ignore_errors=True)
