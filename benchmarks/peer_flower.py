"""A workload in Flower's simulation (Ray): prints the mean CPU seconds of a round as one JSON line.

Runs in the peers' environment. The clock sums the CPU time of this process and all its descendants after every round;
the difference of two marks is that of two runs of different length, with the same start. Linux only (/proc).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from workloads import WORKLOADS, Workload

WORK = WORKLOADS[os.environ["PEER_WORKLOAD"]]
ROUNDS = int(os.environ["PEER_ROUNDS"])
WARM_UP = 3  # both actors load their data in the first rounds

client_app = ClientApp()
server_app = ServerApp()


@cache
def prepared(work: Workload) -> tuple[nn.Module, Tensor, Tensor]:
    """Once per actor."""
    torch.set_num_threads(1)
    return work.model(), *work.data()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model, x, y = prepared(WORK)
    index = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=WORK.lr)
    for batch in torch.randperm(WORK.samples).split(WORK.batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index, batch]), y[index, batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": WORK.samples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    marks: list[float] = []

    def clock(number: int, arrays: ArrayRecord) -> MetricRecord:
        marks.append(tree_cpu_seconds(os.getpid()))
        return MetricRecord({})

    strategy = FedAvg(
        fraction_train=WORK.cohort / WORK.clients,
        fraction_evaluate=0.0,
        min_train_nodes=WORK.cohort,
        min_available_nodes=WORK.clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(WORK.model().state_dict()),
        num_rounds=ROUNDS + WARM_UP,
        evaluate_fn=clock,
    )
    # The mean: the clock ticks every 10 ms in each of some thirty processes, too coarse for single rounds.
    seconds = (marks[-1] - marks[WARM_UP]) / ROUNDS
    print(json.dumps({"start": marks[WARM_UP], "seconds": [seconds]}), file=sys.__stdout__, flush=True)


def tree_cpu_seconds(root: int) -> float:
    """User and system time of a process and all its descendants, ended ones included."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended just now
                continue
            children[int(fields[1])].append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=WORK.clients,
            backend_config={
                "client_resources": {"num_cpus": 1},
                "init_args": {"num_cpus": 2, "include_dashboard": False, "_temp_dir": folder},
            },
        )
