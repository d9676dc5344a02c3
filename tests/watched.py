"""A small federation of main labels, watched by client 0: for the attacks of paper 002."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_CLIENT
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining


@cache
def watched(rounds: int = 8, per_round: int = 3, lr: float = 0.02, seed: int = 3) -> tuple[MemoryTrace, dict[str, Any]]:
    digits = make("datasets", "digits").load()
    split = make("partitions", "main-labels", {"low": 2, "high": 3, "per_label": 20, "minor": 0, "reuse": True})
    shares = share_out(digits, split, 20, auxiliary=30, rng=generator(seed, "shares"))
    build = partial(make("models", "mlp", {"widths": [32]}).build, digits.shape, 10, seed=seed)
    training = LocalTraining(lr=lr, batch_size=10, epochs=2)
    trace = MemoryTrace({
        "classes": 10, "head_weight": "head.weight", "head_bias": "head.bias", "batch_size": 10, "local_lr": lr,
        "local_epochs": 2, "optimizer": "sgd", "client_count": per_round,
    })  # fmt: skip
    settings = Settings(rounds=rounds, clients_per_round=per_round, weighting="uniform", training=training)
    Horizontal(build(), list(shares.clients), settings, seed, 10, trace).run()
    known = {
        "architecture": build, "aux_data": shares.auxiliary, "labels_per_client": (2, 3), "samples": 50,
    }  # fmt: skip
    return trace, known


def guess(name: str, *, me: str = "client:0", **options: Any) -> tuple[Any, MemoryTrace]:
    trace, known = watched()
    return make("attacks", name, options)(trace.view(CURIOUS_CLIENT, me=me, knowledge=known), seed=1), trace
