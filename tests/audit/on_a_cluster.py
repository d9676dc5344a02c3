"""Audits a plan on a Ray cluster of two nodes with one processor each: on_a_cluster.py PLAN FOLDER [KILL_AFTER].

A process of its own, because Ray opens sockets and stays behind in the process that started it. With KILL_AFTER, one
node is killed when so many units are done. FOLDER/audit.json is the result.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import final

import ray
from ray.cluster_utils import Cluster

from fedspill.audit.cost_estimate import needs_of
from fedspill.audit.ray_workers import STORE_BYTES, RayWorkers
from fedspill.audit.run_audit import Request, answer
from fedspill.audit.target import Target
from fedspill.audit.watcher import Quiet
from fedspill.audit.worker_pool import Done
from fedspill.deployment.plan import read_plan


@final
class NodeKiller(Quiet):
    """Kills a node in the middle of a unit, without a word to anybody, once `after` units are done."""

    def __init__(self, cluster: Cluster, folder: Path, after: int | None) -> None:
        self._cluster, self._folder, self._after, self._done = cluster, folder, after, 0

    def done(self, done: Done) -> None:
        self._done += 1
        killed = self._folder / "killed"
        if self._after is None or self._done < self._after or killed.exists():
            return
        until = time.monotonic() + 3.0  # what Ray tells of its nodes is a little old
        while time.monotonic() < until:
            if not ray.available_resources().get("CPU", 0.0):  # both nodes have a unit in hand
                self._cluster.remove_node(self._cluster.list_all_nodes()[-1], allow_graceful=False)
                killed.touch()
                return
            time.sleep(0.05)


def main(plan: Path, folder: Path, after: int | None) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, memory=4 << 30)

        def workers(target: Target) -> RayWorkers:
            return RayWorkers(target, cluster.address, None, target.plan.limits, needs_of(target))

        result = answer(Request(read_plan(plan), folder, workers=workers), NodeKiller(cluster, folder, after))
        (folder / "audit.json").write_text(json.dumps(result.as_json()))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
