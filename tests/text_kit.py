"""Small federations of clients who write: made-up sentences, a transformer of two blocks, and a trace of it."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from torch import nn

from fedspill.data.made_up_sentences import MadeUpSentences
from fedspill.dataset import Dataset, Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.registry import make
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining


@cache
def sentences(*, marked: bool = False) -> Dataset:
    return MadeUpSentences(sentences=60, words=100, shortest=3, longest=6, marked=marked).load()


def network(objective: str = "class", seed: int = 0, name: str = "gpt", **options: Any) -> nn.Module:
    data = sentences(marked=name == "bert")
    given = {"hidden": 64, "heads": 2, "objective": objective, **options}
    made: nn.Module = make("models", name, given).fitted_to(data).build(data.shape, 2, seed=seed)
    return made


def clients(number: int = 4, size: int = 2, *, marked: bool = False) -> list[Examples]:
    train = sentences(marked=marked).train
    return [Examples(train.x[i : i + size], train.y[i : i + size], vocabulary=train.vocabulary)
            for i in range(0, number * size, size)]  # fmt: skip


@cache
def recorded(objective: str = "class") -> MemoryTrace:
    """Two rounds of four clients with two sentences each, one local step."""
    training = LocalTraining(lr=0.1, batch_size=2)
    trace = MemoryTrace()
    settings = Settings(rounds=2, training=training)
    Horizontal(network(objective), clients(), settings, seed=3, classes=2, recorder=trace, engine="loop").run()
    trace.protocol |= {
        "classes": 2,
        "head_weight": None if objective == "next" else "head.weight",
        "head_bias": None if objective == "next" else "head.bias",
        "algorithm": "fedavg",
        "weighting": "examples",
        "batch_size": 2,
        "local_lr": 0.1,
        "local_epochs": 1,
        "optimizer": "sgd",
        "client_count": 4,
    }
    return trace


def knowledge(objective: str = "class") -> dict[str, Any]:
    test = sentences().test
    return {
        "architecture": partial(network, objective, 77),
        "samples": 2,
        "unlabelled_aux": test.x,
        "aux_data": test,
        "defense": (),
        "own_data": clients()[0],
    }
