"""An audit on a Ray cluster of two nodes with one core each, against one such node: seconds of the clock, in one run.

    python benchmarks/ray_nodes.py [plan.toml] [--repeats 1]
    python benchmarks/ray_nodes.py --replay FOLDER [--nodes 2 4 8 16]

By default the default plan with its frontier of defenses. All nodes are on this machine, which must have two idle cores
and a little for Ray itself; the load while it ran is printed beside. One and two nodes take turns, and all start cold.
It takes five minutes where nothing else runs.

Below each ratio stands what bounds it: `idle` is how long a node waited on average, the start of its processes too,
and `head` is the time before, between and after units in which only the head works. `in order` is the ratio that the
agenda allows: it is run again in no time with the seconds that the units took on one node. `--replay` does that alone,
with the folder of an audit that was done anywhere.
"""

from __future__ import annotations

import argparse
import heapq
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from fedspill.audit.cost_estimate import needs_of
from fedspill.audit.course import Course
from fedspill.audit.jobs import Job
from fedspill.audit.ray_workers import STORE_BYTES, RayWorkers
from fedspill.audit.result_from_store import StoredAudit
from fedspill.audit.run_audit import Request, answer
from fedspill.audit.store import Store
from fedspill.audit.target import Target
from fedspill.audit.watcher import Quiet
from fedspill.audit.worker_pool import Done, Take, Workers
from fedspill.deployment.plan import read_plan


@dataclass
class Run:
    """How long an audit took, for how long there were units, and the seconds of each of them."""

    nodes: int
    seconds: float = 0.0
    with_units: float = 0.0
    units: list[float] = field(default_factory=list)

    @property
    def work(self) -> float:
        return sum(self.units)

    @property
    def idle(self) -> float:
        """Seconds that a node waited while there were units, on average."""
        return self.with_units - self.work / self.nodes

    def words(self) -> str:
        return (
            f"{self.nodes} node{'s' * (self.nodes > 1)}: {self.seconds:.0f} s, {len(self.units)} units of "
            f"{self.work:.0f} s, idle {self.idle:.1f} s, head {self.seconds - self.with_units:.1f} s"
        )


class TimedWorkers(Workers):
    """Workers that note how long they have units, and how long each takes."""

    def __init__(self, workers: Workers, run: Run) -> None:
        self._workers, self._run = workers, run

    def run(self, take: Take) -> Iterator[Done]:
        began = time.monotonic()
        for done in self._workers.run(take):
            self._run.units.append(done.seconds)
            yield done
        self._run.with_units += time.monotonic() - began

    def close(self) -> None:
        self._workers.close()


class ReplayedWorkers(Workers):
    """Nodes on which every unit takes as long as it took elsewhere, and comes to the same; nobody waits for them."""

    def __init__(self, audit: StoredAudit, nodes: int) -> None:
        self._audit, self._nodes, self.now = audit, nodes, 0.0

    def run(self, take: Take) -> Iterator[Done]:
        running: list[tuple[float, int, Done]] = []
        waiting: list[Job] = []  # taken in advance, as on Ray
        numbers = count()
        while True:
            while len(running) + len(waiting) < 2 * self._nodes and (job := take()) is not None:
                waiting.append(job)
            while waiting and len(running) < self._nodes:
                job = waiting.pop(0)
                stored = self._audit.known(job)
                assert stored is not None, f"{job.title()} is not in that audit"
                done = Done(job, stored.outcome, stored.seconds)
                heapq.heappush(running, (self.now + stored.seconds, next(numbers), done))
            if not running:
                return
            self.now, _, done = heapq.heappop(running)
            yield done

    def close(self) -> None:
        pass


def replayed(folder: Path, nodes: int) -> float:
    """Seconds that the units of the audit in the folder take on so many nodes, in the order of the agenda."""
    done = StoredAudit(Store(folder, create=False), folder)
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name), create=True)
        store.note(done.facts)
        workers = ReplayedWorkers(done, nodes)
        Course(store, StoredAudit(store, Path(name)), workers, Quiet()).run()
    return workers.now


def measured(plan: Path | None, nodes: int, folder: Path) -> Run:
    """From the plan to the result, the nodes' own start included."""
    from ray.cluster_utils import Cluster

    run = Run(nodes)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )

    def workers(target: Target) -> Workers:
        ray = RayWorkers(target, cluster.address, None, target.plan.limits, needs_of(target))
        return TimedWorkers(ray, run)

    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, memory=6 << 30)
        began = time.monotonic()
        answer(Request(read_plan(plan), folder, workers=workers), Quiet())
        run.seconds = time.monotonic() - began
    finally:
        cluster.shutdown()
    return run


def in_turns(plan: Path | None) -> float:
    """One node, then two; the ratio."""
    with tempfile.TemporaryDirectory() as name:
        one, two = (measured(plan, nodes, Path(name) / str(nodes)) for nodes in (1, 2))
        allowed = one.work / replayed(Path(name) / "1", 2)
    ratio = one.seconds / two.seconds
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{ratio:.2f} times as fast ({load}); in order {allowed:.2f}")
    print(f"    {one.words()}\n    {two.words()}", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--replay", type=Path, metavar="FOLDER")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8, 16])
    asked = parser.parse_args()
    if asked.replay:
        alone = replayed(asked.replay, 1)
        for nodes in asked.nodes:
            print(f"{nodes} nodes: {alone / replayed(asked.replay, nodes):.2f} times as fast as one ({alone:.0f} s)")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ratios = [in_turns(asked.plan) for _ in range(asked.repeats)]
    print(f"median {statistics.median(ratios):.2f}, n = {len(ratios)}")


if __name__ == "__main__":
    main()
