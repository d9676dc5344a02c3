"""The label grid: one estimator against the best published attack of each cell, chosen with hindsight, over 44 cells.

    python benchmarks/label_grid.py --data-dir DATA --out grid.json [--quick] [--batches 30] [--seed 8001] [--blind]

Cells: MNIST, CIFAR-10, CIFAR-100 and 100 Fashion sub-classes; MLP and CNN; untrained and trained; FedSGD and FedAvg in
ten local steps; unbalanced (half, quarter, rest) and uniform labels. The adversary holds 1,000 labelled images of its
own, evenly over the classes, as LLBG-aux does too; with --blind it has nothing but the wire, and LLBG-aux is left out.
A cell that is in the output already is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedspill.attack import Attack
from fedspill.data.cifar10 import Cifar10
from fedspill.data.cifar100 import Cifar100
from fedspill.data.fashion_subclasses import FashionSubclasses
from fedspill.data.mnist import Mnist
from fedspill.dataset import Dataset, Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import accuracy
from fedspill.leaks.labels.ebi import EBI
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.llbg import LLBG
from fedspill.leaks.labels.llbg_aux import LLBGAux
from fedspill.leaks.labels.llg import LLG
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.model_spec import ModelSpec
from fedspill.models.cnn import Cnn
from fedspill.models.cnn_decaf import CnnDecaf
from fedspill.models.heads import last_linear
from fedspill.models.mlp import Mlp
from fedspill.partitions.drawing import class_counts, draw
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.partitions.uniform_batch import UniformBatch
from fedspill.seeds import generator, seed_of
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

BATCH, STEPS, AUXILIARY = 128, 10, 1_000
PUBLISHED: dict[str, Attack] = {"llg": LLG(), "ebi": EBI(), "llbg": LLBG(), "llbg-aux": LLBGAux()}
HELD_OUT, DEVELOPMENT = 8001, 100  # seeds: the estimator's constants were set on the second


@dataclass(frozen=True)
class Network:
    """A model, the data it is for, and how long it is trained; epochs 0 is untrained."""

    data: str
    spec: ModelSpec
    epochs: int = 0
    step: int = 128  # samples per training step


@dataclass(frozen=True)
class Cell:
    network: str
    lr: float | None  # of FedAvg; None is FedSGD
    labels: str  # "unbalanced" or "uniform"

    @property
    def name(self) -> str:
        return f"{self.network} {'fedsgd' if self.lr is None else f'fedavg {self.lr:g}'} {self.labels}"


NETWORKS: dict[str, Network] = {
    "mnist-mlp": Network("mnist", Mlp(widths=(512, 512, 512)), 2),
    "fashion-mlp": Network("fashion", Mlp(widths=(512, 512, 512)), 3),
    "cifar100-mlp": Network("cifar100", Mlp(widths=(512, 512, 512)), 14, 64),
    "cifar10-cnn": Network("cifar10", CnnDecaf(dense=256), 6),
    "fashion-cnn": Network("fashion", CnnDecaf(blocks=2, dense=256), 2),
    "cifar100-cnn": Network("cifar100", CnnDecaf(dense=256), 14, 64),
    "new cifar100-mlp": Network("cifar100", Mlp(widths=(1024, 1024, 1024))),
    "new cifar100-cnn": Network("cifar100", Cnn(width=32)),
    "new cifar100-sigmoid": Network("cifar100", Mlp(widths=(1024, 1024, 1024), last_activation="sigmoid")),
    "new mnist-mlp": Network("mnist", Mlp(widths=(512, 512, 512))),
}
UNTRAINED = (
    ("new cifar100-mlp", (None, 0.001, 0.1), (None, 0.001, 0.03, 0.1, 0.3)),
    ("new cifar100-cnn", (None, 0.001, 0.1), (None, 0.001, 0.03, 0.1)),
    ("new cifar100-sigmoid", (None,), (None,)),
    ("new mnist-mlp", (0.1,), (0.001, 0.1)),
)


def cells() -> list[Cell]:
    """24 cells of trained networks and 20 of untrained ones."""
    trained = [
        Cell(name, lr, labels)
        for name, network in NETWORKS.items()
        if network.epochs
        for lr in (None, 0.001)
        for labels in ("unbalanced", "uniform")
    ]
    untrained = [Cell(name, lr, "uniform") for name, uniform, _ in UNTRAINED for lr in uniform]
    untrained += [Cell(name, lr, "unbalanced") for name, _, unbalanced in UNTRAINED for lr in unbalanced]
    return trained + untrained


@dataclass(frozen=True, eq=False)
class Pools:
    """Disjoint: what a network is trained on, what victims draw from, and what the adversary draws from."""

    shape: tuple[int, ...]
    classes: int
    train: Examples
    victims: Examples
    auxiliary: Examples


def pools(data: str, data_dir: Path | None) -> Pools:
    loaders: dict[str, Callable[[], Dataset]] = {
        "mnist": lambda: Mnist(normalize=True).load(data_dir),
        "fashion": lambda: FashionSubclasses(normalize=True).load(data_dir),
        "cifar10": lambda: Cifar10(normalize=True).load(data_dir),
        "cifar100": lambda: Cifar100(normalize=True).load(data_dir),
    }
    dataset = loaders[data]()
    shape, classes = dataset.shape, len(dataset.classes)
    rng = generator(0, "pools", data)
    if data == "cifar100":  # ten test images a class are all the victims there are; the adversary's come from train
        wanted = torch.full((1, classes), AUXILIARY // classes)
        mine = draw(dataset.train, wanted, rng)[0]
        rest = torch.ones(len(dataset.train), dtype=torch.bool)
        rest[mine] = False
        return Pools(
            shape, classes, dataset.train.take(rest.nonzero().flatten()), dataset.test, dataset.train.take(mine)
        )
    whole = Examples.join([dataset.train, dataset.test])
    order = torch.randperm(len(whole), generator=rng)
    train, victims = {"mnist": (20_000, 8_000), "fashion": (40_000, 12_000), "cifar10": (14_000, 4_000)}[data]
    parts = torch.split(order, [train, victims, len(order) - train - victims])
    return Pools(shape, classes, *(whole.take(part) for part in parts))


def trained(network: Network, pool: Pools, seed: int, store: Path | None = None) -> nn.Module:
    """The network after `epochs` passes of Adam; kept in `store` by name."""
    model = network.spec.build(pool.shape, pool.classes, seed=seed_of(seed, "grid network"))
    if not network.epochs:
        return model
    place = None if store is None else store / f"{network.data}-{network.spec.name}-{seed}.safetensors"
    if place is not None and place.exists():
        model.load_state_dict(load_file(place))
        return model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    rng = generator(seed, "grid training")
    model.train()
    for _ in range(network.epochs):
        for batch in torch.split(torch.randperm(len(pool.train), generator=rng), network.step):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pool.train.x[batch]), pool.train.y[batch]).backward()
            optimizer.step()
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), place)
    return model


def batches(cell: Cell, pool: Pools, number: int, seed: int, *, unseen: bool = False) -> list[Examples]:
    """An untrained network has seen no image, so its victims hold any but the adversary's.

    (Of CIFAR-100 there are ten unseen images a class: a client with half of one class would hold each six times.)
    """
    unseen = unseen or NETWORKS[cell.network].epochs > 0
    images = pool.victims if unseen else Examples.join([pool.train, pool.victims])
    partition = (
        HalfQuarterRest(batch=BATCH, shortage="reuse")
        if cell.labels == "unbalanced"
        else UniformBatch(batch=BATCH, reuse=True)
    )
    return [images.take(share) for share in partition.split(images, number, generator(seed, "grid", cell.name))]


def auxiliary(pool: Pools, seed: int, images: int = AUXILIARY) -> Examples:
    """The adversary's labelled images, evenly over the classes."""
    wanted = torch.full((1, pool.classes), images // pool.classes).minimum(
        class_counts(pool.auxiliary, pool.classes)[None]
    )
    return pool.auxiliary.take(draw(pool.auxiliary, wanted, generator(seed, "grid auxiliary"))[0])


def training_of(cell: Cell) -> LocalTraining:
    if cell.lr is None:
        return LocalTraining(algorithm="fedsgd", batch_size=BATCH, batch_norm="eval")
    return LocalTraining(lr=cell.lr, batch_size=-(-BATCH // STEPS), batch_norm="eval")


def recorded(cell: Cell, model: nn.Module, victims: list[Examples], classes: int, seed: int) -> MemoryTrace:
    """One round in which every victim is a client."""
    training, head = training_of(cell), last_linear(model)
    protocol = {
        "classes": classes,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "algorithm": training.algorithm,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": 1,
        "optimizer": training.optimizer,
    }
    trace = MemoryTrace(protocol)
    Horizontal(model, victims, Settings(rounds=1, training=training), seed, classes, trace, engine="loop").run()
    return trace


@dataclass(frozen=True)
class Outcome:
    """A cell's result; success rates in percent, batch by batch, so that differences can be paired."""

    cell: str
    seed: int
    batches: int
    rates: dict[str, list[float]]
    stated: list[float]  # what `labels` expects of itself
    exact: list[list[float]]  # per batch: stated probability and share of exact counts, by tenths of the former
    routes: dict[str, int]
    accuracy: float
    seconds: float  # of `labels`, for all batches, forward passes included
    network: int = 1  # its seed

    @property
    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.rates.items()}

    def line(self) -> str:
        means = self.means
        published = [name for name in PUBLISHED if name in means]
        best = max(published, key=lambda name: means[name])
        gap = torch.tensor(self.rates["labels"]) - torch.tensor(self.rates[best])
        error = float(gap.std()) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
        figures = "  ".join(f"{name} {means[name]:5.1f}" for name in (*published, "labels"))
        stated = 100 * sum(self.stated) / len(self.stated)
        return (
            f"{self.cell:<40} {figures}  stated {stated:5.1f}  against {best:<8} {float(gap.mean()):+5.1f} "
            f"({error:.1f})  {self.routes}"
        )


@dataclass(frozen=True, eq=False)
class Federation:
    """A recorded round and what the adversary holds."""

    trace: MemoryTrace
    knowledge: dict[str, Any]
    accuracy: float


def federation(
    cell: Cell,
    data_dir: Path | None,
    store: Path,
    number: int,
    seeds: Seeds,
    *,
    per_class: int | None = None,
    unseen: bool = False,
) -> Federation:
    network = NETWORKS[cell.network]
    pool = _pools(network.data, data_dir)
    model = trained(network, pool, seeds.network, store).eval()
    victims = batches(cell, pool, number, seeds.batches, unseen=unseen)
    mine = auxiliary(pool, seeds.batches, AUXILIARY if per_class is None else per_class * pool.classes)
    trace = recorded(cell, model, victims, pool.classes, seeds.batches)
    known = {"architecture": partial(copy.deepcopy, model), "aux_data": mine, "unlabelled_aux": mine.x}
    return Federation(trace, known, accuracy(model, pool.victims))


def run_cell(
    cell: Cell,
    data_dir: Path | None,
    store: Path,
    number: int,
    seeds: Seeds,
    *,
    per_class: int | None = None,
    blind: bool = False,
    unseen: bool = False,
) -> Outcome:
    made = federation(cell, data_dir, store, number, seeds, per_class=per_class, unseen=unseen)
    trace, seed = made.trace, seeds.batches
    view = trace.view(CURIOUS_SERVER, knowledge={} if blind else made.knowledge)
    rates: dict[str, list[float]] = {}
    for name, attack in PUBLISHED.items():
        if blind and name == "llbg-aux":
            continue
        guess = attack(view, seed=seed)
        assert isinstance(guess, LabelCounts)
        rates[name] = (100 * overlap(guess.counts, true_counts(guess, trace.truth()))).tolist()
    began = time.process_time()
    guess = Labels()(view, seed=seed)
    seconds = time.process_time() - began
    assert isinstance(guess, LabelCounts)
    assert guess.confidence is not None
    assert guess.sure is not None
    real = true_counts(guess, trace.truth())
    rates["labels"] = (100 * overlap(guess.counts, real)).tolist()
    routes = {route: guess.routes.count(route) for route in sorted(set(guess.routes))}
    return Outcome(
        cell.name,
        seed,
        len(guess.of),
        rates,
        guess.confidence.tolist(),
        by_tenths(guess.sure, guess.counts == real),
        routes,
        made.accuracy,
        seconds,
        seeds.network,
    )


def by_tenths(stated: torch.Tensor, right: torch.Tensor) -> list[list[float]]:
    """For each tenth of stated probability: how many claims, their mean, and how many were right."""
    tenth = (stated * 10).long().clamp(0, 9)
    found = []
    for index in range(10):
        inside = tenth == index
        found.append([float(inside.sum()), float(stated[inside].sum()), float(right[inside].sum())])
    return found


@dataclass(frozen=True)
class Seeds:
    """Networks of held-out runs are of other seeds than those of development."""

    batches: int
    network: int

    @staticmethod
    def of(batches: int, network: int | None) -> Seeds:
        return Seeds(batches, network if network is not None else 0 if batches == DEVELOPMENT else 1)


@cache
def _pools(data: str, data_dir: Path | None) -> Pools:
    return pools(data, data_dir)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """How often ours is at least as good as the best published attack of the cell, and the means over cells."""
    published = [name for name in PUBLISHED if all(name in outcome.means for outcome in outcomes)]
    best = [max(outcome.means[name] for name in published) for outcome in outcomes]
    ours = [outcome.means["labels"] for outcome in outcomes]
    claims = torch.tensor([outcome.exact for outcome in outcomes]).sum(0)
    near = [(s, r) for o in outcomes for s, r in zip(o.stated, o.rates["labels"], strict=True) if 0.87 <= s <= 0.93]
    return {
        "cells": len(outcomes),
        "at least as good": sum(mine >= theirs - 0.005 for mine, theirs in zip(ours, best, strict=True)),
        "labels": sum(ours) / len(ours),
        "hindsight maximum": sum(best) / len(best),
        **{name: sum(outcome.means[name] for outcome in outcomes) / len(outcomes) for name in published},
        "batches that state 87 to 93 percent": len(near),
        "their success rate": sum(rate for _, rate in near) / len(near) if near else None,
        "class counts by stated probability": [
            {"claims": int(n), "stated": s / n, "right": r / n} for n, s, r in claims.tolist() if n
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON; cells in it are not run again")
    parser.add_argument("--store", type=Path, default=Path("label-grid-networks"), help="folder for trained networks")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--seed", type=int, default=HELD_OUT, help=f"{DEVELOPMENT} is the development seed")
    parser.add_argument("--network", type=int, help="seed of the networks: 0 in development, else 1")
    parser.add_argument("--per-class", type=int, help="auxiliary images a class instead of 1,000 in all")
    parser.add_argument("--blind", action="store_true", help="an adversary without data of its own")
    parser.add_argument("--unseen", action="store_true", help="untrained networks too get unseen images only")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--quick", action="store_true", help="untrained cells, 5 batches")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    number, seeds = 5 if asked.quick else asked.batches, Seeds.of(asked.seed, asked.network)
    done: dict[str, Outcome] = {}
    if asked.out.exists():
        kept = json.loads(asked.out.read_text())["outcomes"]
        found = [Outcome(**item) for item in kept]
        done = {one.cell: one for one in found if Seeds(one.seed, one.network) == seeds}
    for cell in cells():
        wanted = asked.only in cell.name and not (asked.quick and NETWORKS[cell.network].epochs)
        if wanted and cell.name not in done:
            how = {"per_class": asked.per_class, "blind": asked.blind, "unseen": asked.unseen}
            done[cell.name] = run_cell(cell, asked.data_dir, asked.store, number, seeds, **how)
            text = json.dumps({"outcomes": [asdict(item) for item in done.values()], **_total(done)}, indent=1)
            asked.out.write_text(text + "\n")
        if wanted:
            print(done[cell.name].line(), flush=True)
    print(json.dumps(summary(list(done.values())), indent=1))


def _total(done: dict[str, Outcome]) -> dict[str, Any]:
    return {"summary": summary(list(done.values()))}


if __name__ == "__main__":
    main()
