"""Runs the example app in Flower's simulation on Ray, bound to this machine: simulate.py NODES ROUNDS FOLDER.

A process of its own, because Ray opens sockets and stays behind in the process that started it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
sys.path.insert(0, str(EXAMPLE))
os.environ["PYTHONPATH"] = f"{EXAMPLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

ON_LOOPBACK = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
}


def memory() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(nodes: int, rounds: int, folder: Path) -> None:
    from digits_app.client_app import app as client_app
    from digits_app.server_app import app as server_app
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()
    used: list[int] = []

    @app.main()
    def configured(grid: Grid, context: Context) -> None:
        send = grid.send_and_receive

        def counted(*args: Any, **kwargs: Any) -> Any:
            used.append(memory())
            return send(*args, **kwargs)

        grid.send_and_receive = counted  # type: ignore[method-assign]
        random.seed(0)
        context.run_config = {
            "num-server-rounds": rounds,
            "fraction-train": 1.0,
            "min-nodes": nodes,
            "local-epochs": 1,
            "lr": 0.1,
            "batch-size": 16,
            "trace": str(folder / "digits.trace"),
            "model": str(folder / "model.safetensors"),
        }
        server_app(grid, context)

    began = time.perf_counter()
    run_simulation(app, client_app, nodes, backend_config=ON_LOOPBACK)  # type: ignore[arg-type]
    report = {"seconds": time.perf_counter() - began, "memory": used}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
