"""A small federation around any strategy, with clients that misbehave on request."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from inprocess import FIRST_NODE, InProcess
from torch import nn


def all_nodes(**options: Any) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def node(index: int) -> int:
    return FIRST_NODE + index


@dataclass
class Little:
    """Clients that train a small classifier on random numbers, and misbehave on request."""

    clients: int = 4
    samples: int = 20
    batch: int = 5
    rounds: int = 3
    misbehave: Callable[[int, int, Message], Message] = lambda number, index, reply: reply
    mods: list[Any] = field(default_factory=list)

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def data(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(index)
        return torch.randn(self.samples, 6, generator=rng), torch.randint(3, (self.samples,), generator=rng)

    def app(self) -> ClientApp:
        app = ClientApp(mods=self.mods)

        @app.train()
        def train(msg: Message, context: Context) -> Message:
            index, number = int(context.node_config["partition-id"]), int(msg.content["config"]["server-round"]) - 1
            model = self.model()
            names = list(model.state_dict())
            arrays = msg.content["arrays"].to_numpy_ndarrays()
            model.load_state_dict({n: torch.from_numpy(a) for n, a in zip(names, arrays, strict=True)})
            x, y = self.data(index)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for part_x, part_y in zip(x.split(self.batch), y.split(self.batch), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(part_x), part_y).backward()
                optimizer.step()
            keys = list(msg.content["arrays"])
            arrays = dict(zip(keys, model.state_dict().values(), strict=True))
            content = RecordDict(
                {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": self.samples})}
            )
            return self.misbehave(number, index, Message(content, reply_to=msg))

        return app

    def run(self, strategy: Strategy, start: ArrayRecord | None = None, **grid: Any) -> dict[str, torch.Tensor]:
        """The global model after all rounds."""
        random.seed(0)
        start = start or ArrayRecord(self.model().state_dict())
        result = strategy.start(InProcess(self.app(), self.clients, **grid), start, num_rounds=self.rounds)
        return result.arrays.to_torch_state_dict()
