"""What recording costs a Flower federation: whole runs with and without `record`, in turns.

    python benchmarks/flower_recorder.py [--quick] [--only digits mlp cnn] [--json FILE]

Clients are run in this process, one after the other, without Ray and without sockets: what Flower adds to a round would
only hide the recorder. A run is `rounds` rounds from start to the last byte on disk, so opening and finishing the trace
count too. CPU is that of all threads. Bar: at most 10 % more CPU and at most 10 % more time, as the median of pairs.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from timing import spread
from torch import nn
from workloads import WORKLOADS, Workload

from fedspill.flower import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "flower"))
from inprocess import InProcess

BAR = 1.10
DIGITS = Workload(
    "digits, MLP 64-64-10, 10 clients, 12 steps of 16",
    lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    (64,),
    clients=10,
    cohort=10,
    samples=180,
    rounds=20,
    batch_size=16,
)
CASES = {
    "digits": DIGITS,
    "mlp": replace(WORKLOADS["mlp"], clients=50, rounds=8),
    "cnn": replace(WORKLOADS["cnn"], title="CNN 1.63 M, 10 clients, 5 steps of 10", clients=10, cohort=10, rounds=5),
}


@dataclass
class Cost:
    cpu: float
    wall: float


def client_app(work: Workload) -> ClientApp:
    app, model, (x, y) = ClientApp(), work.model(), work.data()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        index = int(context.node_config["partition-id"])
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
        for part_x, part_y in zip(x[index].split(work.batch_size), y[index].split(work.batch_size), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(part_x), part_y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": work.samples})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)

    return app


def runs(work: Workload, folder: Path) -> dict[str, Callable[[], None]]:
    """One federation from start to end, plain or recorded."""
    app = client_app(work)

    def run(recorded: bool) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        if recorded:
            strategy = record(strategy, folder / "trace")
        strategy.start(InProcess(app, work.clients), ArrayRecord(work.model().state_dict()), num_rounds=work.rounds)
        shutil.rmtree(folder / "trace", ignore_errors=True)

    return {"plain": lambda: run(False), "recorded": lambda: run(True)}


def measure(functions: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in functions}
    for turn in range(repeats + 1):  # the first warms up
        order = list(functions) if turn % 2 else list(functions)[::-1]
        for name in order:
            cpu, wall = time.process_time(), time.perf_counter()
            functions[name]()
            if turn:
                costs[name].append(Cost(time.process_time() - cpu, time.perf_counter() - wall))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    figures = {}
    for name in options.only:
        work = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            repeats = (5 if options.quick else 15) if name == "cnn" else (11 if options.quick else 41)
            costs = measure(runs(work, Path(folder)), repeats)
        per_round = [cost.wall / work.rounds for cost in costs["plain"]]
        ratios = {
            kind: np.array([getattr(r, kind) / getattr(p, kind) for p, r in zip(*costs.values(), strict=True)])
            for kind in ("cpu", "wall")
        }
        met = all(float(np.median(ratio)) <= BAR for ratio in ratios.values())
        print(f"{work.title}; {spread(per_round, 1e3)} ms a round without recorder")
        print(f"  CPU  recorded / plain  {spread(ratios['cpu'])}")
        print(f"  time recorded / plain  {spread(ratios['wall'])}, bar <= {BAR}: {'met' if met else 'NOT MET'}")
        figures[name] = {kind: float(np.median(ratio)) for kind, ratio in ratios.items()} | {
            "runs": repeats,
            "met": met,
        }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
