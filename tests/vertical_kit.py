"""Small vertical federations for tests: digits in four tiles, little towers, a trace of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedspill.data.digits import Digits
from fedspill.dataset import Examples
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.messages import Message
from fedspill.models.cafe_towers import CafeTowers
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import VERTICAL_SERVER
from fedspill.trace import MemoryTrace, View
from fedspill.training import LocalTraining

SAMPLES, BATCH, ROUNDS = 24, 6, 12


@cache
def digits(samples: int = SAMPLES) -> Examples:
    train = Digits().load().train
    return train.take(torch.randperm(len(train), generator=torch.Generator().manual_seed(5))[:samples])


def network(
    seed: int = 1, *, parties: int = 4, widths: tuple[int, int, int] = (32, 16, 10), **options: Any
) -> VerticalNet:
    spec = CafeTowers(parties=parties, filters=(32, 128), widths=widths, **options)
    return vertical_net(spec.build((1, 8, 8), 10, seed=seed))


def plain(seed: int = 1, *, parties: int = 4, shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> VerticalNet:
    return vertical_net(make("models", "vertical-mlp", {"parties": parties}).build(shape, classes, seed=seed))


def federate(
    net: VerticalNet | None = None,
    examples: Examples | None = None,
    *,
    batch: int = BATCH,
    seed: int = 3,
    lr: float = 0.05,
    plan: Sequence[Tensor] = (),
    tamper: Callable[[int, Message], Message] | None = None,
    **settings: Any,
) -> tuple[MemoryTrace, Vertical, list[Any]]:
    trace = MemoryTrace({"classes": 10})
    chosen = VerticalSettings(
        **{
            "rounds": ROUNDS,
            "batches": "anti-twins",
            "static": True,
            "training": LocalTraining(batch_size=batch, lr=lr),
            **settings,
        }
    )
    made = Vertical(
        network() if net is None else net, digits() if examples is None else examples, chosen, seed, trace,
        batches=plan, tamper=tamper,
    )  # fmt: skip
    return trace, made, made.run()


def server_view(trace: MemoryTrace, build: Callable[[], VerticalNet] = network, **more: Any) -> View:
    return trace.view(VERTICAL_SERVER, knowledge={"architecture": build, **more})
