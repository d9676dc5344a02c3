"""Vertical federations with private towers: labels from returned gradients, features from embeddings, and defenses.

    python benchmarks/vertical.py labels adult linear        # also: android, mnist, fashion_mnist, location30; mlp
    python benchmarks/vertical.py norms adult                # batch norms in the head: first, before a ReLU, deeper
    python benchmarks/vertical.py noise-party mnist linear   # the curious party holds nothing but noise
    python benchmarks/vertical.py rows android 64            # linear programs: data, units
    python benchmarks/vertical.py equality location30 29     # data, unknown features
    python benchmarks/vertical.py pairs adult                # the curve over known pairs; a number: that many alone
    python benchmarks/vertical.py defenses adult             # accuracy against what is left, 1 epoch and 15

Each cell is several federations of different samples, models and batches (--seeds, from --first on); a figure is the
mean over federations with Student's 95 % half-width. FEDSPILL_DATA names the data folder. One thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from scipy import stats
from torch import nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Dataset, Examples, KnownSamples
from fedspill.defense import Defense
from fedspill.errors import NotApplicable
from fedspill.federation.local import accuracy
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import ACTIVE_PARTY, CURIOUS_PARTY, MALICIOUS_PARTY, ThreatModel
from fedspill.trace import MemoryTrace, Truth
from fedspill.training import LocalTraining

DATA = {"android": "android-permissions"}
torch.set_num_threads(1)


@dataclass(frozen=True, eq=False)
class Cell:
    """One federation that was run."""

    dataset: Dataset
    stock: Examples
    build: Callable[[], VerticalNet]
    trace: MemoryTrace
    federation: PrivateTowers
    defenses: tuple[Defense, ...]
    per_epoch: int  # rounds

    def known(self, per_class: int, pairs: int = 0) -> dict[str, Any]:
        net, labels = self.build(), self.stock.y
        parts = [part.flatten(1) for part in net.parts.split(self.stock.x)]
        classes = len(self.dataset.classes)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        few = torch.cat([order[labels[order] == label][:per_class] for label in range(classes)])
        asked = order[order < self.federation.settings.predictions][:pairs]
        return {
            "architecture": self.build,
            "few_labels": KnownSamples(few, labels[few]),
            "class_prior": torch.bincount(labels, minlength=classes).double() / len(labels),
            "party_features": parts[0],
            "active_features": parts[-1] if net.parties > 1 else parts[0][:, :0],
            "feature_ranges": torch.stack([parts[0].min(0).values, parts[0].max(0).values]),
            "paired_aux": KnownSamples(asked, parts[0][asked]),
            **({"defense": self.defenses} if self.defenses else {}),
        }

    def epochs(self, first: int, last: int) -> MemoryTrace:
        """The recording of some epochs; what everybody ends up with is in it too."""
        kept = range(first * self.per_epoch, (last + 1) * self.per_epoch)
        messages = (m for m in self.trace.messages() if m.round in kept or m.kind == "model")
        return MemoryTrace.of(messages, self.trace.protocol)

    def truth(self) -> Truth:
        return self.trace.truth().beside([self.stock])

    def run(
        self, attack: str, threat: ThreatModel, known: dict[str, Any], trace: MemoryTrace | None = None, **options: Any
    ) -> Outcome | None:
        try:
            made = make("attacks", attack, options)
            return run_attack(made, trace or self.trace, threat, knowledge=known, seed=1, truth=self.truth())
        except NotApplicable as error:
            print(f"    {attack}: {error}", flush=True)
            return None


def federation(
    args: argparse.Namespace,
    seed: int,
    model: dict[str, Any],
    *,
    epochs: int,
    defenses: Sequence[Defense] = (),
    noise_party: bool = False,
    malicious: bool = False,
    **settings: Any,
) -> Cell:
    """Draws samples, builds and trains."""
    return federate(args, load(args.data), seed, model, epochs=epochs, defenses=defenses, noise_party=noise_party,
                    malicious=malicious, **settings)  # fmt: skip


def load(name: str) -> Dataset:
    dataset: Dataset = make("datasets", DATA.get(name, name.replace("_", "-"))).load()
    return dataset


def federate(
    args: argparse.Namespace,
    dataset: Dataset,
    seed: int,
    model: dict[str, Any] | Callable[[], VerticalNet],
    *,
    epochs: int,
    defenses: Sequence[Defense] = (),
    noise_party: bool = False,
    malicious: bool = False,
    training: LocalTraining | None = None,
    **settings: Any,
) -> Cell:
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(dataset.train), generator=rng)
    stock = dataset.train.take(order[: args.samples])
    test = dataset.test.take(torch.randperm(len(dataset.test), generator=rng)[:2000])
    dataset = dataclasses.replace(dataset, train=stock, test=test)

    def plain() -> VerticalNet:
        spec = make("models", "vertical-mlp", {"cut": "strips", **(model if isinstance(model, dict) else {})})
        return vertical_net(spec.build(dataset.shape, len(dataset.classes), seed=seed))

    build = plain if isinstance(model, dict) else model

    if noise_party:
        net = build()
        parts = net.parts.split(stock.x)
        parts[0] = torch.randn(parts[0].shape, generator=rng)
        stock = Examples(net.parts.join(parts), stock.y)
    per_epoch = -(-len(stock) // args.batch)
    chosen = PrivateTowerSettings(
        rounds=epochs * per_epoch,
        training=training or LocalTraining(optimizer="adam", lr=args.lr, batch_size=args.batch),
        defenses=tuple(defenses),
        **settings,
    )
    trace = MemoryTrace({"classes": len(dataset.classes)})
    made = PrivateTowers(build(), stock, chosen, seed, trace, malicious=malicious)
    made.run()
    return Cell(dataset, stock, build, trace, made, tuple(defenses), per_epoch)


def said(values: Sequence[float]) -> str:
    """Mean over federations and Student's half-width."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "-"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.4f} +- {half:.4f}"


class Figures:
    """Values of several federations, by name."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.values.setdefault(name, []).append(value)

    def show(self, title: str) -> None:
        for name, values in self.values.items():
            print(f"{title} | {name} | {said(values)} | {len(values)} federations", flush=True)


def value(outcome: Outcome | None, metric: str = "sample-label-accuracy") -> float | None:
    return None if outcome is None or metric not in outcome.scores else outcome.scores[metric].value


def seeds(args: argparse.Namespace) -> Iterator[int]:
    for seed in range(args.first, args.first + args.seeds):
        began = time.process_time()
        yield seed
        print(f"  seed {seed}: {time.process_time() - began:.0f} s of one core", flush=True)


def label_model(args: argparse.Namespace) -> dict[str, Any]:
    width = 32 if args.data == "location30" else 16
    head = {"head_widths": [64]} if args.top == "mlp" else {}
    return {"parties": args.parties, "widths": [64, width], **head}


def labels(args: argparse.Namespace) -> None:
    """Attacks on the first three epochs, on the last one alone, and on all of them."""
    found = Figures()
    last = args.epochs - 1
    for seed in seeds(args):
        cell = federation(args, seed, label_model(args), epochs=args.epochs)
        one, four, forty = (cell.known(each) for each in (1, 4, max(1, 40 // len(cell.dataset.classes))))
        early, late = cell.epochs(0, 2), cell.epochs(last, last)
        found.add("commonest class", float(one["class_prior"].max()))
        found.add("test accuracy", accuracy(cell.federation.model, cell.dataset.test))
        for stage, trace, known in (
            ("epochs 0-2, 1 a class", early, one),
            (f"epoch {last}, 1 a class", late, one),
            (f"epoch {last}, 4 a class", late, four),
            ("all epochs, 1 a class", cell.trace, one),
        ):
            found.add(f"cone, {stage}", value(cell.run("cone", CURIOUS_PARTY, known, trace)))
        found.add("cone blind, epochs 0-2, named by 1 a class", value(
            cell.run("cone", CURIOUS_PARTY, one, early, start="blind")
        ))  # fmt: skip
        for stage, trace in (("epochs 0-2", early), (f"epoch {last}", late)):
            for attack in ("gradient-similarity", *(("gradient-direction",) if len(cell.dataset.classes) == 2 else ())):
                found.add(f"{attack}, {stage}, 1 a class", value(cell.run(attack, CURIOUS_PARTY, one, trace)))
            if len(cell.dataset.classes) == 2:
                norm = cell.run("gradient-norm", CURIOUS_PARTY, one, trace)
                found.add(f"gradient-norm, {stage}, AUC", value(norm, "sample-label-auc"))
        found.add("model-completion, 40 labels", value(cell.run("model-completion", CURIOUS_PARTY, forty)))
        if args.malicious:
            hurried = federation(args, seed, label_model(args), epochs=args.epochs, malicious=True)
            found.add("active-completion, 40 labels", value(
                hurried.run("active-completion", MALICIOUS_PARTY, forty)
            ))  # fmt: skip
    found.show(f"{args.data}, {args.top} head, {args.parties} parties")


def norms(args: argparse.Namespace) -> None:
    """The cone behind heads with a batch norm: before linear layers, before a ReLU, and behind a linear layer."""
    dataset = load(args.data)
    classes, width, hidden = len(dataset.classes), 16 * args.parties, 64
    necks: dict[str, Callable[[], list[nn.Module]]] = {
        "norm, linear": lambda: [nn.BatchNorm1d(width)],
        "norm, ReLU, hidden layer": lambda: [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, hidden), nn.ReLU()],
        "hidden layer, norm, ReLU": lambda: [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()],
    }
    for name, neck in necks.items():
        if args.only not in name:
            continue
        found = Figures()
        for seed in seeds(args):
            cell = federate(args, dataset, seed, partial(_with_neck, args, dataset, seed, neck), epochs=args.epochs)
            known = cell.known(1)
            found.add("commonest class", float(known["class_prior"].max()))
            for stage, trace in (("epochs 0-2", cell.epochs(0, 2)), ("all epochs", cell.trace)):
                found.add(f"cone, {stage}, 1 a class", value(cell.run("cone", CURIOUS_PARTY, known, trace)))
            found.add("gradient-similarity, epochs 0-2, 1 a class", value(
                cell.run("gradient-similarity", CURIOUS_PARTY, known, cell.epochs(0, 2))
            ))  # fmt: skip
        found.show(f"{args.data}, {classes} classes, {name}")


def _with_neck(
    args: argparse.Namespace, dataset: Dataset, seed: int, neck: Callable[[], list[nn.Module]]
) -> VerticalNet:
    spec = make("models", "vertical-mlp", {"cut": "strips", "parties": args.parties, "widths": [64, 16]})
    net = vertical_net(spec.build(dataset.shape, len(dataset.classes), seed=seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net.neck = nn.Sequential(*neck())
        hidden = [layer.out_features for layer in net.neck if isinstance(layer, nn.Linear)]
        if hidden:
            net.head = nn.Linear(hidden[-1], len(dataset.classes))
    return net


def noise_party(args: argparse.Namespace) -> None:
    found = Figures()
    for seed in seeds(args):
        cell = federation(args, seed, label_model(args), epochs=args.epochs, noise_party=True)
        known = cell.known(4)
        found.add("commonest class", float(known["class_prior"].max()))
        found.add("cone, epochs 0-2, 4 a class", value(cell.run("cone", CURIOUS_PARTY, known, cell.epochs(0, 2))))
        found.add("cone, all epochs, 4 a class", value(cell.run("cone", CURIOUS_PARTY, known)))
        forty = cell.known(max(1, 40 // len(cell.dataset.classes)))
        found.add("model-completion, 40 labels", value(cell.run("model-completion", CURIOUS_PARTY, forty)))
    found.show(f"{args.data}, {args.top} head, the party holds noise")


def rows(args: argparse.Namespace) -> None:
    """Linear programs against towers of one layer."""
    found, proven, refuted, total = Figures(), 0, 0, 0
    for seed in seeds(args):
        cell = federation(
            args, seed, {"widths": [args.number]}, epochs=5, predictions=args.rows, hand_over=True,
            defenses=[make("defenses", "embedding-noise", {"sigma": args.noise})] if args.noise else (),
        )  # fmt: skip
        outcome = cell.run("linear-program", ACTIVE_PARTY, cell.known(1))
        assert outcome is not None
        for metric in ("feature-rows", "feature-cells", "feature-r2"):
            found.add(metric, value(outcome, metric))
        found.add("by guessing, feature-cells", outcome.scores["feature-cells"].chance)
        found.add("test accuracy", accuracy(cell.federation.model, cell.dataset.test))
        proof = outcome.scores["feature-rows"].proof
        assert proof is not None
        proven, refuted, total = proven + proof.proven, refuted + proof.refuted, total + proof.total
    features = len(cell.known(1)["feature_ranges"][0])
    found.show(f"{args.data}, {features} features, {args.number} units")
    print(
        f"{args.data}, {args.number} units: {proven} of {total} rows certified and right, {refuted} false certificates"
    )


def equality(args: argparse.Namespace) -> None:
    """Equality solving and generative regression against a logistic regression whose embeddings nobody sees."""
    found = Figures()
    for seed in seeds(args):
        dataset: Dataset = make("datasets", DATA.get(args.data, args.data)).load()
        columns = dataset.shape[-1] if len(dataset.shape) == 1 else dataset.train.x[0].numel()
        lively = dataset.train.x.flatten(1).std(0) > 0.05
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
        unknown = order[lively[order]][: args.number].tolist()
        others = [column for column in range(columns) if column not in set(unknown)]
        classes = len(dataset.classes)
        model = {"widths": [classes], "top": "sum", "columns": [unknown, others]}
        cell = federation(args, seed, model, epochs=5, predictions=args.rows, hand_over=True, secure_sum=True)
        known = cell.known(1)
        for attack in ("equality-solving", "generative-regression"):
            outcome = cell.run(attack, ACTIVE_PARTY, known)
            for metric in ("feature-rows", "feature-r2"):
                found.add(f"{attack}, {metric}", value(outcome, metric))
    found.show(f"{args.data}, {classes} classes, {args.number} unknown")


CURVE = (10, 20, 50, 100, 200, 500, 1000, 2000)  # known pairs


def pairs(args: argparse.Namespace) -> None:
    """Ridge regression against towers of two layers whose weights nobody knows, over how many pairs are known."""
    many = (args.number,) if args.number else tuple(number for number in CURVE if number + 500 <= args.samples)
    found: dict[int, Figures] = {number: Figures() for number in many}
    for seed in seeds(args):
        cell = federation(args, seed, {"widths": [64, args.units]}, epochs=5, predictions=max(many) + 500)
        for number in many:
            outcome = cell.run("ridge-pairs", ACTIVE_PARTY, cell.known(1, number))
            for metric in ("feature-r2", "feature-cells", "feature-rows"):
                found[number].add(metric, value(outcome, metric))
            if outcome is not None:
                found[number].add("by guessing, feature-cells", outcome.scores["feature-cells"].chance)
    for number, figures in found.items():
        figures.show(f"{args.data}, {args.units} units, {number} pairs")


SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("returned-noise", {"power": 0.5}),
    ("returned-noise", {"power": 2.0}),
    ("returned-noise", {"power": 8.0}),
    ("returned-noise", {"power": 32.0}),
    ("returned-noise", {"power": 512.0}),
    ("returned-noise", {"power": 8192.0}),
    ("marvell", {"power": 2.0}),
    ("marvell", {"power": 8.0}),
    ("max-norm", {}),
    ("coarse-gradients", {"values": "sign"}),
    ("coarse-gradients", {"values": "bins"}),
    ("redrawn-labels", {"share": 0.2}),
    ("redrawn-labels", {"share": 0.5}),
    ("redrawn-labels", {"share": 0.8}),
    ("embedding-noise", {"sigma": 1.0}),
)


def defenses(args: argparse.Namespace) -> None:
    """What is left to a party that reads one epoch, and to one that reads all; both know the defense.

    Beside it what the party with the labels gets without the others: a defense that costs as much protects nothing that
    staying alone does not.
    """
    binary = args.data in ("adult", "android")
    metric = "sample-label-auc" if binary else "sample-label-accuracy"
    table: dict[str, Figures] = {}
    for name, options in SETTINGS:
        label = f"{name or 'none'} {' '.join(map(str, options.values()))}".strip()
        if (name == "marvell" and not binary) or args.only not in label:
            continue
        found = Figures()
        for seed in seeds(args):
            placed = [make("defenses", name, options)] if name else []
            cell = federation(args, seed, label_model(args), epochs=15, defenses=placed)
            known = cell.known(4)
            found.add("test accuracy", accuracy(cell.federation.model, cell.dataset.test))
            found.add(f"cone, 1 epoch, {metric}", value(
                cell.run("cone", CURIOUS_PARTY, known, cell.epochs(1, 1)), metric
            ))  # fmt: skip
            found.add(f"cone, 15 epochs, {metric}", value(cell.run("cone", CURIOUS_PARTY, known), metric))
            if not name:
                found.add("test accuracy of the party with the labels alone", _alone(args, seed))
        found.show(f"{args.data}, {label}")
        table[label] = found
    _frontier(table, metric)


def _alone(args: argparse.Namespace, seed: int) -> float:
    """Accuracy of the last party's tower and head without the others."""
    dataset = load(args.data)
    net = vertical_net(make("models", "vertical-mlp", label_model(args)).build(dataset.shape, 2, seed=0))
    train, test = (
        Examples(net.parts.split(part.x)[-1].flatten(1), part.y) for part in (dataset.train, dataset.test)
    )  # fmt: skip
    own = dataclasses.replace(dataset, train=train, test=test, columns=(), groups=())
    cell = federate(args, own, seed, {**label_model(args), "parties": 1}, epochs=15)
    return accuracy(cell.federation.model, cell.dataset.test)


def _frontier(table: dict[str, Figures], metric: str) -> None:
    """The settings as a table, the safest first; a star where no other is both more accurate and safer in the end."""
    means = {
        label: [statistics.fmean(values) for values in figures.values.values()][:3] for label, figures in table.items()
    }
    print(f"| defense | 1 epoch | 15 epochs | accuracy | ({metric})", flush=True)
    for label, (right, once, always) in sorted(means.items(), key=lambda item: item[1][2]):
        beaten = any(other[0] >= right and other[2] < always for other in means.values())
        print(f"| {label} | {once:.2f} | {always:.2f} | {100 * right:.1f} | {'' if beaten else '*'}", flush=True)


PARTS = {
    "labels": labels,
    "norms": norms,
    "noise-party": noise_party,
    "rows": rows,
    "equality": equality,
    "pairs": pairs,
    "defenses": defenses,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("data")
    parser.add_argument("more", nargs="?", default="linear", help="the head, or a number of units, unknowns or pairs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=9100)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--parties", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.0, help="embedding noise, in deviations")
    parser.add_argument("--malicious", action="store_true", help="also by a party that trains other than agreed")
    parser.add_argument("--only", default="", help="part of a defense and its setting, or none; or of a head")
    args = parser.parse_args()
    args.number = int(args.more) if args.more.isdigit() else 0
    args.top = "linear" if args.more.isdigit() else args.more
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
