"""An audit on a Ray cluster of two nodes with one core each, against one such node: seconds of the clock, in one run.

    python benchmarks/ray_nodes.py [plan.toml] [--repeats 1]

By default the default plan with its frontier of defenses. All nodes are on this machine, which must have two idle cores
and a little for Ray itself; the load while it ran is printed beside. One and two nodes take turns, and all start cold.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from fedspill.audit.cost_estimate import needs_of
from fedspill.audit.ray_workers import STORE_BYTES, RayWorkers
from fedspill.audit.run_audit import Quiet, Request, answer
from fedspill.audit.target import Target
from fedspill.deployment.plan import read_plan


def seconds(plan: Path | None, nodes: int) -> float:
    """From the first unit to the last, the nodes' own start included."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )

    def workers(target: Target) -> RayWorkers:
        return RayWorkers(target, cluster.address, None, target.plan.limits, needs_of(target))

    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, memory=6 << 30)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            answer(Request(read_plan(plan), Path(folder), workers=workers), Quiet())
            return time.monotonic() - began
    finally:
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ratios = []
    for _ in range(asked.repeats):
        one, two = seconds(asked.plan, 1), seconds(asked.plan, 2)
        ratios.append(one / two)
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(f"one node {one:.0f} s, two nodes {two:.0f} s: {one / two:.2f} times as fast ({load})", flush=True)
    print(f"median {statistics.median(ratios):.2f}, n = {len(ratios)}")


if __name__ == "__main__":
    main()
