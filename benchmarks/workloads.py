"""The federations that every contender runs: same models, same data, same schedule. Needs torch only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def regression() -> nn.Module:
    return nn.Linear(784, 10)


def cnn() -> nn.Module:
    """pfl's CNN for CIFAR-10, without its dropout: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True)
class Workload:
    """`cohort` of `clients` train for one pass over `samples` each; data are noise of the right shape."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    cohort: int
    samples: int
    rounds: int  # timed per block
    batch_size: int = 10
    lr: float = 0.1

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs (clients, samples, ...) and labels (clients, samples)."""
        rng = torch.Generator().manual_seed(1)
        x = torch.rand((self.clients, self.samples, *self.shape), generator=rng)
        return x, torch.randint(0, 10, (self.clients, self.samples), generator=rng)


WORKLOADS = {
    "mlp": Workload("MLP 784-64-10, 50 of 1000 clients, 5 steps of 10", mlp, (784,), 1000, 50, 50, 20),
    "lr": Workload("LR 784-10, 10 of 1000 clients, 6 steps of 10", regression, (784,), 1000, 10, 60, 60),
    "cnn": Workload("CNN 1.63 M, 50 of 100 clients, 5 steps of 10", cnn, (3, 32, 32), 100, 50, 50, 2),
}
