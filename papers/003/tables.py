"""Tables of paper 003 (Gat and Sharif, Harmful Bias, AISec 2024) as runnable checks, in the authors' protocol.

A client's update is ten local SGD steps at learning rate 0.001 on ceil(B/10) samples each, and what the server reads is
the sum of the step gradients. Batches are unbalanced: half of one class, a quarter of another, the rest of any. Each
batch meets a freshly initialised network; the same batches serve every attack.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedspill.data.base import Dataset, Examples
from fedspill.errors import DataMissing
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import LocalTraining
from fedspill.guesses import LabelCounts
from fedspill.metrics.base import Score
from fedspill.metrics.labels import LabelSuccess, baselines, true_counts
from fedspill.models.base import ModelSpec
from fedspill.models.heads import last_linear
from fedspill.registry import make
from fedspill.reproduce import By, Row, Run, Table, not_runnable, published, verdict
from fedspill.seeds import generator, seed_of
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import Keep, MemoryTrace, Origin, Truth

METRIC = "ASR, percent of labels"
TOLERANCE = 2.0  # points
PUBLISHED = ("llg", "ebi", "llbg")
LEARNING_RATE, LOCAL_STEPS = 0.001, 10


@dataclass(frozen=True)
class UntrainedCifar100(Table):
    """Table 1: untrained models on CIFAR-100, B = 128."""

    name: ClassVar[str] = "003/1"
    title: ClassVar[str] = "Labels of untrained models on CIFAR-100, FedAvg, B = 128"
    paper: ClassVar[str] = "003"

    # Batches at quick scale: what fits into two minutes on two cores.
    quick: ClassVar[Mapping[str, int]] = {"mlp": 20, "cnn": 4, "vgg19": 4, "resnet32": 1}

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "1")
        dataset, why_not = load_images("cifar100", run)
        for model in MODELS:
            if dataset is None:
                yield from (
                    not_runnable(_cell(model, a), "paper", METRIC, printed[model][a], why_not) for a in PUBLISHED
                )
                continue
            batches = 100 if run.scale == "full" else self.quick[model]
            name, options = MODELS[model]
            note = batch_note(dataset)
            if batches < 3:
                note = f"{note} Too few batches at quick scale for a verdict; run at full scale, on a GPU."
            if run.scale == "quick" and model == "cnn":
                options, note = {"width": 64}, f"{note} A quarter of the paper's width at quick scale."
            results = attack_batches(dataset, make("models", name, options), batches, 128, run)
            yield from rows_of(results, model, printed[model], note)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"widths": [1024, 1024, 1024]}),
    "cnn": ("cnn", {"width": 256}),
    "vgg19": ("vgg19", {}),
    "resnet32": ("resnet32", {"width": 10}),  # the authors' network is ten times as wide as the usual one
}


@dataclass(frozen=True, eq=False)
class Result:
    """What one algorithm got on the common batches."""

    attack: str
    by: By
    score: Score


def load_images(name: str, run: Run) -> tuple[Dataset | None, str]:
    """The data set with normalised inputs, or the reason why it is not there."""
    try:
        return make("datasets", name, {"normalize": True}).load(run.data_dir), ""
    except DataMissing as error:
        return None, str(error)


def batch_note(dataset: Dataset) -> str:
    """What a reader must know about the batches."""
    return f"{dataset.note} Images repeat where a class has fewer than a batch asks for.".strip()


def attack_batches(dataset: Dataset, spec: ModelSpec, batches: int, batch: int, run: Run) -> list[Result]:
    """All attacks on the same unbalanced batches, each trained on by a fresh network in ten local steps."""
    split = make("partitions", "half-quarter-rest", {"batch": batch, "shortage": "reuse"})
    shares = split.split(dataset.test, batches, generator(run.seed, "batches", batch))
    auxiliary = dataset.train.x[torch.randperm(len(dataset.train), generator=generator(run.seed, "auxiliary"))[:64]]
    counts: dict[str, list[Tensor]] = {}
    truths = []
    for index, share in enumerate(shares):
        network = spec.build(dataset.shape, len(dataset.classes), seed=seed_of(run.seed, "network", index))
        trace = record_update(network, dataset.test.take(share), batch, len(dataset.classes), run)
        known = {"architecture": partial(_evaluated_on, network, run.device), "unlabelled_aux": auxiliary}
        for attack in (*PUBLISHED, "labels"):
            guess = make("attacks", attack)(trace.view(CURIOUS_SERVER, knowledge=known), seed=run.seed)
            counts.setdefault(attack, []).append(guess.counts)
        truths.append(true_counts(guess, trace.truth()))
    real = torch.cat(truths)
    by: dict[str, By] = {"labels": "fedspill"}
    results = [Result(name, by.get(name, "paper"), score(torch.cat(found), real)) for name, found in counts.items()]
    names = ("even counts", "commonest class", "random labels")
    return results + [Result(n, "baseline", score(c, real)) for n, c in zip(names, baselines(real), strict=True)]


def record_update(network: nn.Module, batch: Examples, size: int, classes: int, run: Run) -> MemoryTrace:
    """One client, one round: what the server sends, and the last layer of what comes back."""
    head = last_linear(network)
    training = LocalTraining(lr=LEARNING_RATE, batch_size=-(-size // LOCAL_STEPS), batch_norm="eval")
    protocol = {
        "classes": classes,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": 1,
    }
    trace = MemoryTrace(protocol, Keep(kinds=frozenset({"model", "update"})))
    Horizontal(network, [batch], Settings(rounds=1, training=training), run.seed, classes, trace, run.device).run()
    return trace


def _evaluated_on(network: nn.Module, device: str) -> nn.Module:
    return copy.deepcopy(network).to(device)


def score(counts: Tensor, real: Tensor) -> Score:
    """Attack success rate of counts (batches, classes) against the real ones."""
    origins = [Origin(index, "client:0") for index in range(len(real))]
    truth = Truth({(origin, "label_counts"): row for origin, row in zip(origins, real, strict=True)})
    return LabelSuccess().score(LabelCounts(origins, counts), truth)


def rows_of(results: list[Result], model: str, printed: Mapping[str, float], note: str) -> Iterator[Row]:
    """A row per algorithm; ours and the baselines are held against the best printed figure of the model."""
    best = max(printed.values())
    for result in results:
        figure = printed.get(result.attack, best)
        value, low, high, chance = (
            100 * x for x in (result.score.value, result.score.low, result.score.high, result.score.chance)
        )
        against = "" if result.attack in printed else "Printed: the paper's best attack. "
        judged = verdict(result.score, figure, tolerance=TOLERANCE, unit=100)
        cell = _cell(model, result.attack)
        yield Row(cell, result.by, METRIC, figure, value, low, high, result.score.n, chance, judged, against + note)


def _cell(model: str, attack: str) -> dict[str, str]:
    return {"model": model, "attack": attack}
