"""An audit on a Ray cluster of two nodes with one core each, against one such node: seconds of the clock, in one run.

    python benchmarks/ray_nodes.py [plan.toml] [--repeats 1]

By default the default plan with its frontier of defenses. All nodes are on this machine, which must have two idle cores
and a little for Ray itself; the load while it ran is printed beside. One and two nodes take turns, and all start cold.

Below each ratio stands what bounds it. An audit goes in waves, and a wave begins when the last unit of the one before
has ended: `idle` is how long nodes waited for that, and for Ray. Between waves and before the first one only the head
works: `head` is that time. `units alone` is the ratio that waves and units allow on two nodes that cost nothing, by
placing the seconds that the units took on one node.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedspill.audit.cost_estimate import needs_of
from fedspill.audit.jobs import Job
from fedspill.audit.ray_workers import STORE_BYTES, RayWorkers
from fedspill.audit.run_audit import Quiet, Request, answer
from fedspill.audit.target import Target
from fedspill.audit.worker_pool import Done, Workers
from fedspill.deployment.plan import read_plan


@dataclass
class Run:
    """How long an audit took, and of each wave how long it took and the seconds of each of its units."""

    nodes: int
    seconds: float = 0.0
    waves: list[tuple[float, list[float]]] = field(default_factory=list)

    @property
    def head(self) -> float:
        """Seconds in which no unit could run."""
        return self.seconds - sum(took for took, _ in self.waves)

    @property
    def work(self) -> float:
        return sum(sum(units) for _, units in self.waves)

    @property
    def idle(self) -> float:
        """Seconds that a node waited during waves, on average."""
        return sum(took for took, _ in self.waves) - self.work / self.nodes

    def words(self) -> str:
        units = sum(len(units) for _, units in self.waves)
        return (
            f"{self.nodes} node{'s' * (self.nodes > 1)}: {self.seconds:.0f} s, {units} units of {self.work:.0f} s "
            f"in {len(self.waves)} waves, idle {self.idle:.0f} s, head {self.head:.0f} s"
        )


class TimedWorkers(Workers):
    """Workers that note how long each wave and each of its units takes."""

    def __init__(self, workers: Workers, run: Run) -> None:
        self._workers, self._run = workers, run

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        began, units = time.monotonic(), []
        for done in self._workers.run(jobs):
            units.append(done.seconds)
            yield done
        if units:
            self._run.waves.append((time.monotonic() - began, units))

    def close(self) -> None:
        self._workers.close()


def measured(plan: Path | None, nodes: int) -> Run:
    """From the first unit to the last, the nodes' own start included."""
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
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            answer(Request(read_plan(plan), Path(folder), workers=workers), Quiet())
            run.seconds = time.monotonic() - began
    finally:
        cluster.shutdown()
    return run


def allowed(run: Run, nodes: int = 2) -> float:
    """The ratio of waves and units alone: each unit goes to the node that is free first, and the head costs nothing."""
    total = 0.0
    for _, units in run.waves:
        free = [0.0] * nodes
        for seconds in units:
            free[free.index(min(free))] += seconds
        total += max(free)
    return run.work / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ratios = []
    for _ in range(asked.repeats):
        one, two = measured(asked.plan, 1), measured(asked.plan, 2)
        ratios.append(one.seconds / two.seconds)
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(f"{ratios[-1]:.2f} times as fast ({load}); units alone {allowed(one):.2f}")
        print(f"    {one.words()}\n    {two.words()}", flush=True)
    print(f"median {statistics.median(ratios):.2f}, n = {len(ratios)}")


if __name__ == "__main__":
    main()
