"""Tables and figures of paper 000 (Dai et al., Decaf) as runnable checks.

Clients have the printed compositions. The paper leaves open the learning rate, the batch size, the local epochs and
how many samples a client has: here 1,200 samples, batches of 64 and the optimizer that a row names. Quick scale halves
the sides of grey 28-pixel images and narrows the convolutions to a quarter; the attacked layer keeps its printed 128
inputs. Full scale is the network of Table II. "Decaf as written" is every single round of 0 to 3, averaged, since a
round "in the first few" was drawn; ours joins those rounds. Tables III to VII show both of ours, path bases and
rehearsal; the others vary one thing and show the path, which is cheap. Nothing is refused here: every client counts.
"""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import nn

from fedspill.dataset import Dataset, Examples
from fedspill.defense import Defense
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.dropout import Dropout
from fedspill.defenses.verify import guarantee_of
from fedspill.errors import DataMissing
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import accuracy
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.metrics import (
    CompositionL1,
    CompositionL2,
    CompositionLInf,
    FalseNulls,
    NullRecall,
    baselines,
    by_client,
    distance,
    true_shares,
)
from fedspill.leaks.composition.shares.published_steps import descent, gradient_bases, null_classes
from fedspill.metric import Measured, Metric, Score
from fedspill.models.heads import last_linear
from fedspill.observe.local_changes import read_changes, read_known_federation
from fedspill.observe.path_bases import path_bases
from fedspill.observe.path_products import path_products
from fedspill.observe.simplex import simplex_fit
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.reproduce import By, Row, Run, Table, not_runnable, published, verdict
from fedspill.seeds import generator, seed_of
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import KEEP_ALL, Keep, MemoryTrace, View
from fedspill.training import LocalTraining

METRIC = "L1, percent"
TOLERANCE = 3.0  # points
SAMPLES = 1200
ROUNDS = 4

SETTINGS: dict[str, LocalTraining] = {
    "adadelta 1.0": LocalTraining(optimizer="adadelta", lr=1.0, batch_size=64),  # the paper's, rate assumed
    "sgd, one epoch": LocalTraining(lr=0.1, batch_size=64),
    "sgd, one full-batch step": LocalTraining(lr=0.1, batch_size=SAMPLES),
    "sgd, five epochs": LocalTraining(lr=0.1, batch_size=64, epochs=5),
    "adam 0.001": LocalTraining(optimizer="adam", lr=0.001, batch_size=64),
}
TABLES = {"mnist": "mnist", "fashion-mnist": "mnist", "cifar10": "cifar10", "fer2013": "fer2013", "ham10000": "skin"}


@dataclass(frozen=True, eq=False)
class Recording:
    """One federation, attacked: what its server sees, and the truth."""

    trace: MemoryTrace
    known: Mapping[str, Any]
    accuracies: tuple[float, ...]  # of the global model before each round
    device: str

    def view(self, **known: Any) -> View:
        return self.trace.view(CURIOUS_SERVER, knowledge={**self.known, **known}, device=self.device)

    def guess(self, seed: int, known: Mapping[str, Any] | None = None, **options: Any) -> Proportions:
        guess = make("attacks", "decaf", {"least_agreement": 0.0, **options})(self.view(**(known or {})), seed=seed)
        assert isinstance(guess, Proportions)
        return guess


def load_images(name: str, run: Run) -> tuple[Dataset | None, str]:
    """The data set, grey 28-pixel images at half the side in quick scale; or the reason why it is not there."""
    try:
        dataset: Dataset = make("datasets", name).load(run.data_dir)
    except DataMissing as error:
        return None, str(error)
    if run.scale == "quick" and dataset.shape == (1, 28, 28):
        dataset = replace(dataset, train=_halved(dataset.train), test=_halved(dataset.test))
    return dataset, ""


def _halved(examples: Examples) -> Examples:
    return Examples(nn.functional.avg_pool2d(examples.x, 2), examples.y)


def record(
    dataset: Dataset,
    training: LocalTraining,
    run: Run,
    repeat: int,
    *,
    rounds: int = ROUNDS,
    model: tuple[str, dict[str, Any]] | None = None,
    auxiliary: int = 100,
    defenses: tuple[Defense, ...] = (),
    keep: Keep = KEEP_ALL,
    samples: int = SAMPLES,
) -> Recording:
    """A federation of the printed compositions, `samples` a client; `repeat` numbers independent ones."""
    name, options = model or ("cnn-decaf", {})
    if name == "cnn-decaf" and run.scale == "quick":
        options = {"width": 8, **options}
    table = TABLES[dataset.name]
    scarce = table != "mnist"  # images repeat where a class has fewer than the table asks for
    split = make("partitions", "compositions", {"table": table, "samples": samples, "reuse": scarce})
    clients, seed = len(split.rows), seed_of(run.seed, "decaf", repeat)
    per_class = min(auxiliary, int(torch.bincount(dataset.train.y).min()) // 2)
    shares = share_out(dataset, split, clients, auxiliary=per_class, rng=generator(seed, "shares"))
    build = partial(make("models", name, options).build, dataset.shape, len(dataset.classes), seed=seed_of(seed, "net"))
    head = last_linear(build(), shares.clients[0].x[:2])
    protocol = {
        "classes": len(dataset.classes),
        "head_weight": head.weight,
        "head_bias": head.bias,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": {
            "name": training.optimizer,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
        },
    }
    trace = MemoryTrace(protocol, keep)
    settings = Settings(rounds=rounds, training=training, defenses=defenses)
    federation = Horizontal(build(), list(shares.clients), settings, seed, len(dataset.classes), trace, run.device)
    tested = dataset.test.take(torch.arange(min(2000, len(dataset.test)))).to(run.device)
    accuracies = []
    for number in range(rounds):
        accuracies.append(accuracy(federation.model, tested))
        federation.round(number)
    known = {"architecture": build, "aux_data": shares.auxiliary}
    return Recording(trace, known, tuple(accuracies), run.device)


def joined(metric: Metric, guesses: Sequence[Proportions], recordings: Sequence[Recording]) -> Score:
    """The score over the clients of several federations."""
    parts = [metric.measure(g, r.trace.truth()) for g, r in zip(guesses, recordings, strict=True)]
    return metric.summarise(Measured.join(parts))


def row(
    cell: Mapping[str, Any], by: By, score: Score, printed: float | None, note: str = "", metric: str = METRIC
) -> Row:
    """A row in percent; a distance is better when lower."""
    value, low, high, chance = (100 * x for x in (score.value, score.low, score.high, score.chance))
    judged = verdict(score, printed, tolerance=TOLERANCE, unit=100, higher_is_better=metric != METRIC)
    return Row(cell, by, metric, printed, value, low, high, score.n, chance, judged, note)


def attacked(
    recordings: Sequence[Recording], setting: str, run: Run, printed: float | None, note: str, **paper: Any
) -> Iterator[Row]:
    """Decaf as written, ours and the trivial guesses on the same federations."""
    written = [r.guess(run.seed, solver="paper", rounds="single", **paper) for r in recordings]
    path = [r.guess(run.seed, solver="path") for r in recordings]
    ours = [r.guess(run.seed) for r in recordings]
    solved = (
        ("decaf as written", "paper", written),
        ("decaf, path bases", "fedspill", path),
        ("decaf, rehearsed", "fedspill", ours),
    )
    for attack, by, guesses in solved:
        l2, linf = (100 * joined(m, guesses, recordings).value for m in (CompositionL2(), CompositionLInf()))
        nulls, false = (100 * joined(m, guesses, recordings).value for m in (NullRecall(), FalseNulls()))
        about = f"L2 {l2:.1f}, L-inf {linf:.1f}; absent classes found {nulls:.0f} %, false {false:.1f} %. {note}"
        cell = {"setting": setting, "attack": attack}
        yield row(cell, by, joined(CompositionL1(), guesses, recordings), printed, about.strip())  # type: ignore[arg-type]
    yield from trivial(recordings, ours, setting, printed)


def trivial(
    recordings: Sequence[Recording], guesses: Sequence[Proportions], setting: str, printed: float | None
) -> Iterator[Row]:
    values: dict[str, list[torch.Tensor]] = {}
    for recording, guess in zip(recordings, guesses, strict=True):
        real = true_shares(guess, recording.trace.truth())
        for name, rows in baselines(real).items():
            errors = by_client(distance(rows, real, 1), [origin.sender for origin in guess.of])
            values.setdefault(name, []).append(errors)
    for name, parts in values.items():
        errors = torch.cat(parts)
        law = "Dirichlet(1), the draw of median error. " if name == "random" else ""
        score = CompositionL1().summarise(Measured(errors, errors))
        yield row({"setting": setting, "attack": f"guess: {name}"}, "baseline", score, printed, law)


def repeats(run: Run, setting: str) -> int:
    """Independent federations behind a row: fewer for the dear ones at quick scale."""
    if run.scale == "full":
        return 5
    return 2 if setting == "sgd, one epoch" else 1


def rounds_of(run: Run, setting: str) -> int:
    """Rounds of a federation; where clients train five times as long, quick scale has the first alone."""
    return 1 if run.scale == "quick" and SETTINGS[setting].epochs > 1 else ROUNDS


class Compositions(Table, ABC):
    """One of Tables III to VII: the custom network on one data set."""

    paper: ClassVar[str] = "000"
    dataset: ClassVar[str]
    quick: ClassVar[tuple[str, ...]] = tuple(SETTINGS)

    def rows(self, run: Run) -> Iterator[Row]:
        return chain.from_iterable(part() for part in self.parts(run))

    def parts(self, run: Run) -> Sequence[Callable[[], Iterator[Row]]]:
        printed = published(self.paper, self.name.partition("/")[2])["mean"]
        dataset, why_not = load_images(self.dataset, run)
        settings = self.quick if run.scale == "quick" else tuple(SETTINGS)
        if dataset is None:
            missing = not_runnable({"setting": "all", "attack": "decaf"}, "paper", METRIC, printed, why_not)
            return [lambda: iter([missing])]
        return [partial(_of_setting, dataset, setting, run, printed) for setting in settings]


def _of_setting(dataset: Dataset, setting: str, run: Run, printed: float | None) -> Iterator[Row]:
    note = "" if setting.startswith("adadelta") else "The printed figure is the paper's, with Adadelta."
    rounds = rounds_of(run, setting)
    note = note if rounds == ROUNDS else f"{note} One round, not {ROUNDS}."
    many = 1 if run.scale == "quick" else repeats(run, setting)  # three minutes on two cores are to suffice
    recordings = [record(dataset, SETTINGS[setting], run, k, rounds=rounds) for k in range(many)]
    yield from attacked(recordings, setting, run, printed, f"{note} {dataset.note}".strip())


@dataclass(frozen=True)
class Mnist(Compositions):
    """Table III: MNIST, 10 users."""

    name: ClassVar[str] = "000/III"
    title: ClassVar[str] = "Compositions of MNIST clients"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "mnist"


@dataclass(frozen=True)
class FashionMnist(Compositions):
    """Table IV: Fashion-MNIST, 10 users."""

    name: ClassVar[str] = "000/IV"
    title: ClassVar[str] = "Compositions of Fashion-MNIST clients"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "fashion-mnist"


@dataclass(frozen=True)
class Cifar10(Compositions):
    """Table V: CIFAR-10, 10 users."""

    name: ClassVar[str] = "000/V"
    title: ClassVar[str] = "Compositions of CIFAR-10 clients"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "cifar10"
    quick: ClassVar[tuple[str, ...]] = ("adadelta 1.0", "sgd, one epoch")


@dataclass(frozen=True)
class Fer2013(Compositions):
    """Table VI: FER-2013, 7 users."""

    name: ClassVar[str] = "000/VI"
    title: ClassVar[str] = "Compositions of FER-2013 clients"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "fer2013"
    quick: ClassVar[tuple[str, ...]] = ("adadelta 1.0", "sgd, one epoch")


@dataclass(frozen=True)
class SkinCancer(Compositions):
    """Table VII: HAM10000, 7 users."""

    name: ClassVar[str] = "000/VII"
    title: ClassVar[str] = "Compositions of HAM10000 clients"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "ham10000"
    quick: ClassVar[tuple[str, ...]] = ("adadelta 1.0", "sgd, one epoch")


@dataclass(frozen=True)
class Overhead(Table):
    """Table VIII: seconds for one client, MNIST; absolute times are this machine's, the ratio is what counts."""

    name: ClassVar[str] = "000/VIII"
    title: ClassVar[str] = "Seconds of each step of the attack, one MNIST client"
    paper: ClassVar[str] = "000"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "VIII")["mnist"]
        dataset, why_not = load_images("mnist", run)
        if dataset is None:
            yield not_runnable({"step": "all"}, "paper", "seconds", None, why_not)
            return
        view = record(dataset, SETTINGS["sgd, one epoch"], run, 0, rounds=1).view()
        setting = read_known_federation(view)
        change = read_changes(view, setting)[0][1]
        target, rng = change.moved[:, :-1] / setting.lr, generator(run.seed, "overhead")
        null = null_classes(target, 0.0)
        single, union = gradient_bases(change, setting, null, "step", rng)
        bases = torch.cat([single, union[None]]).flatten(1)
        ours = path_bases(setting.model, change.before, change.change, setting.head, setting.auxiliary, setting.classes)
        mean = change.mean_gradient(setting.lr, setting.optimizer)
        even = torch.full((setting.classes,), 1 / setting.classes, dtype=torch.float64)
        products = path_products(ours, mean).at(even, 0.001)
        steps: list[tuple[str, By, float | None, Any]] = [
            ("null classes", "paper", printed["null classes"], lambda: null_classes(target, 0.0)),
            ("bases", "paper", printed["bases"], lambda: gradient_bases(change, setting, null, "step", rng)),
            ("decomposition", "paper", printed["decomposition"], lambda: descent(bases, target.flatten(), 1000, 1.0)),
            ("path bases", "fedspill", printed["bases"], lambda: path_bases(
                setting.model, change.before, change.change, setting.head, setting.auxiliary, setting.classes)),
            ("whitening", "fedspill", None, lambda: path_products(ours, mean).at(even, 0.001)),
            ("decomposition", "fedspill", printed["decomposition"], lambda: simplex_fit(products, ~null)),
        ]  # fmt: skip
        for step, by, figure, work in steps:
            seconds = torch.tensor([_timed(work) for _ in range(5)], dtype=torch.float64)
            low, high = float(seconds.min()), float(seconds.max())
            note = "Median of 5, with the fastest and slowest; another machine than the paper's: no verdict."
            cell = {"step": step}
            yield Row(cell, by, "seconds", figure, float(seconds.median()), low, high, 5, 0.0, "not runnable", note)


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class LargeNetworks(Table, ABC):
    """One of Tables IX, X, XII, XIII: a standard network, in full scale on a GPU."""

    paper: ClassVar[str] = "000"
    dataset: ClassVar[str]
    model: ClassVar[tuple[str, dict[str, Any]]]

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, self.name.partition("/")[2])["mean"]
        dataset, why_not = load_images(self.dataset, run)
        if run.scale == "quick":
            why_not = "Hours on a CPU: run with --scale full --device cuda."
        if dataset is None or why_not:
            yield not_runnable({"setting": "all", "attack": "decaf"}, "paper", METRIC, printed, why_not)
            return
        for setting, training in (
            ("adadelta 1.0", SETTINGS["adadelta 1.0"]),
            ("sgd 0.02, one epoch", replace(SETTINGS["sgd, one epoch"], lr=0.02)),
        ):
            recordings = [record(dataset, training, run, k, model=self.model) for k in range(2)]
            yield from attacked(recordings, setting, run, printed, dataset.note)


RESNET18: tuple[str, dict[str, Any]] = ("resnet18", {})
VGG16: tuple[str, dict[str, Any]] = ("vgg16", {"hidden": [1000]})  # "1000 x N": a hidden layer of 1000 before the last


@dataclass(frozen=True)
class ResNet18Fer(LargeNetworks):
    """Table IX."""

    name: ClassVar[str] = "000/IX"
    title: ClassVar[str] = "Compositions, ResNet18 on FER-2013"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "fer2013"
    model: ClassVar[tuple[str, dict[str, Any]]] = RESNET18


@dataclass(frozen=True)
class Vgg16Fer(LargeNetworks):
    """Table X."""

    name: ClassVar[str] = "000/X"
    title: ClassVar[str] = "Compositions, VGG16 on FER-2013"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "fer2013"
    model: ClassVar[tuple[str, dict[str, Any]]] = VGG16


@dataclass(frozen=True)
class ResNet18Cifar(LargeNetworks):
    """Table XII."""

    name: ClassVar[str] = "000/XII"
    title: ClassVar[str] = "Compositions, ResNet18 on CIFAR-10"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "cifar10"
    model: ClassVar[tuple[str, dict[str, Any]]] = RESNET18


@dataclass(frozen=True)
class Vgg16Cifar(LargeNetworks):
    """Table XIII."""

    name: ClassVar[str] = "000/XIII"
    title: ClassVar[str] = "Compositions, VGG16 on CIFAR-10"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "cifar10"
    model: ClassVar[tuple[str, dict[str, Any]]] = VGG16


class Ablation(Table, ABC):
    """One of Tables XIV, XV: a step of Decaf left out; ours without the null test beside it, and the other readings."""

    paper: ClassVar[str] = "000"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]]

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, self.name.partition("/")[2])["mean"]
        dataset, why_not = load_images("mnist", run)
        if dataset is None:
            yield not_runnable({"setting": "all", "attack": "decaf"}, "paper", METRIC, printed, why_not)
            return
        for setting in ("adadelta 1.0", "sgd, one epoch"):
            recordings = [record(dataset, SETTINGS[setting], run, k) for k in range(repeats(run, setting))]
            for attack, options in self.variants.items():
                by: By = "paper" if options.get("solver") == "paper" else "fedspill"
                guesses = [r.guess(run.seed, **{"rounds": "single", **options}) for r in recordings]
                cell = {"setting": setting, "attack": attack}
                yield row(cell, by, joined(CompositionL1(), guesses, recordings), printed)


@dataclass(frozen=True)
class NoNullRemoval(Ablation):
    """Table XIV."""

    name: ClassVar[str] = "000/XIV"
    title: ClassVar[str] = "Without removal of null classes, MNIST"
    paper: ClassVar[str] = "000"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "decaf, no null removal": {"solver": "paper", "null_removal": False},
        "path bases, no null test": {"solver": "path", "null_removal": False, "rounds": "all"},
    }


@dataclass(frozen=True)
class NoCalibrator(Ablation):
    """Table XV, and the other readings of the calibrator."""

    name: ClassVar[str] = "000/XV"
    title: ClassVar[str] = "Without calibrator, MNIST, and its other readings"
    paper: ClassVar[str] = "000"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "decaf, no calibrator": {"solver": "paper", "calibrator": False},
        "eta_c + eta_u / N": {"solver": "paper", "read_out": "share"},
        "unified base: an epoch": {"solver": "paper", "unified": "epoch"},
        "path bases": {"solver": "path", "rounds": "all"},
    }


@dataclass(frozen=True)
class NullClasses(Table):
    """Sections III-D and V-A: null classes by activation and weight decay; the paper claims 100 % by proof."""

    name: ClassVar[str] = "000/nulls"
    title: ClassVar[str] = "Absent classes found, MNIST, by activation and weight decay"
    paper: ClassVar[str] = "000"

    def rows(self, run: Run) -> Iterator[Row]:
        dataset, why_not = load_images("mnist", run)
        if dataset is None:
            yield not_runnable({"case": "all"}, "paper", "percent", None, why_not)
            return
        plain = SETTINGS["sgd, one epoch"]
        cases: list[tuple[str, str, LocalTraining, float]] = [
            ("relu", "relu", plain, 0.0),
            ("relu, adadelta", "relu", SETTINGS["adadelta 1.0"], 0.0),
            ("leaky-relu", "leaky-relu", plain, 0.001),
            ("relu, decay 0.001", "relu", replace(plain, weight_decay=0.001), 0.0),
            ("tanh", "tanh", plain, 0.0),
        ]
        for case, activation, training, threshold in cases:
            model = ("cnn-decaf", {"activation": activation})
            recordings = [record(dataset, training, run, k, model=model) for k in range(repeats(run, case))]
            for by, options in (
                ("paper", {"solver": "paper", "null_threshold": threshold, "epochs": 1}),
                ("fedspill", {"solver": "path", "points": 1}),
            ):
                guesses = [r.guess(run.seed, rounds="single", **options) for r in recordings]
                for metric, name in ((NullRecall(), "absent found, percent"), (FalseNulls(), "false nulls, percent")):
                    printed = 100.0 if isinstance(metric, NullRecall) else None
                    cell = {"case": case, "test": name}
                    yield row(cell, by, joined(metric, guesses, recordings), printed, "", name)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Stability(Table):
    """Figure 6: error by round, and of rounds joined; the data of the curve."""

    name: ClassVar[str] = "000/fig6"
    title: ClassVar[str] = "Error by round, MNIST and HAM10000"
    paper: ClassVar[str] = "000"

    def rows(self, run: Run) -> Iterator[Row]:
        for name in ("mnist", "ham10000") if run.scale == "full" else ("mnist",):
            dataset, why_not = load_images(name, run)
            if dataset is None:
                yield not_runnable({"data": name}, "paper", METRIC, None, why_not)
                continue
            rounds = 20 if run.scale == "full" else 6
            for setting in ("adadelta 1.0", "sgd, one epoch"):
                recording = record(dataset, SETTINGS[setting], run, 0, rounds=rounds)
                for by, options in (("paper", {"solver": "paper"}), ("fedspill", {"solver": "path"})):
                    guess = recording.guess(run.seed, rounds="single", **options)
                    yield from self._curve(recording, guess, f"{name}, {setting}", by)  # type: ignore[arg-type]

    def _curve(self, recording: Recording, guess: Proportions, what: str, by: By) -> Iterator[Row]:
        real = true_shares(guess, recording.trace.truth())
        errors, even = distance(guess.shares, real, 1), distance(baselines(real)["uniform"], real, 1)
        numbers = torch.tensor([origin.round for origin in guess.of])
        for number in numbers.unique().tolist():
            score = CompositionL1().summarise(Measured(errors[numbers == number], even[numbers == number]))
            agreement = float(guess.agreement[numbers == number].mean())
            note = f"agreement {agreement:.2f}, accuracy of the model {recording.accuracies[number]:.2f}"
            yield row({"curve": what, "round": number}, by, score, None, note)


class Sweep(Table, ABC):
    """A figure that varies one thing: mean error over users and the first rounds."""

    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "mnist"
    full: ClassVar[tuple[Any, ...]]
    quick: ClassVar[tuple[Any, ...]]

    def recording(self, dataset: Dataset, run: Run, value: Any) -> Recording:
        raise NotImplementedError

    def rows(self, run: Run) -> Iterator[Row]:
        dataset, why_not = load_images(self.dataset, run)
        if dataset is None:
            yield not_runnable({"value": "all"}, "paper", METRIC, None, why_not)
            return
        for value in self.full if run.scale == "full" else self.quick:
            recording = self.recording(dataset, run, value)
            note = f"accuracy of the model before the last round {recording.accuracies[-1]:.2f}"
            for by, options in (("paper", {"solver": "paper", "rounds": "single"}), ("fedspill", {"solver": "path"})):
                guess = recording.guess(run.seed, **options)
                score = joined(CompositionL1(), [guess], [recording])
                yield row({"value": value}, by, score, None, note)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AuxiliarySamples(Sweep):
    """Figure 7: auxiliary samples per class, Fashion-MNIST."""

    name: ClassVar[str] = "000/fig7"
    title: ClassVar[str] = "Error by auxiliary samples per class, Fashion-MNIST"
    paper: ClassVar[str] = "000"
    dataset: ClassVar[str] = "fashion-mnist"
    full: ClassVar[tuple[Any, ...]] = (2, 5, 10, 20, 30, 100)
    quick: ClassVar[tuple[Any, ...]] = (2, 10, 30)

    def recording(self, dataset: Dataset, run: Run, value: Any) -> Recording:
        return record(dataset, SETTINGS["sgd, one epoch"], run, 0, auxiliary=value)


@dataclass(frozen=True)
class LastLayerWidth(Sweep):
    """Figure 8: inputs of the last layer, MNIST."""

    name: ClassVar[str] = "000/fig8"
    title: ClassVar[str] = "Error by width of the last layer, MNIST"
    paper: ClassVar[str] = "000"
    full: ClassVar[tuple[Any, ...]] = (128, 256, 512, 1024)
    quick: ClassVar[tuple[Any, ...]] = (128, 512)

    def recording(self, dataset: Dataset, run: Run, value: Any) -> Recording:
        return record(dataset, SETTINGS["sgd, one epoch"], run, 0, model=("cnn-decaf", {"dense": value}))


MULTIPLIERS = {"epsilon 1": 0.1, "epsilon 2": 0.25, "epsilon 3": 1.0, "epsilon 4": 4.0, "epsilon 5": 16.0}
DEFENSES: dict[str, tuple[Defense, ...]] = {
    "baseline": (),
    "dropout": (Dropout(rate=0.25),),
    **{name: (DpSgd(noise_multiplier=z),) for name, z in MULTIPLIERS.items()},
}
QUICK_DEFENSES = ("baseline", "dropout", "epsilon 1", "epsilon 3", "epsilon 5")


@dataclass(frozen=True)
class Reading:
    """What Table XI leaves open: the local training, and who holds how many samples."""

    training: LocalTraining
    samples: int = SAMPLES  # of each client
    clients: int | None = None  # so many hold a random share each, for one round; None: the printed compositions


# Opacus's PRV accountant gives the printed epsilons (1.03, 0.12, 0.03 at multipliers 1, 4, 16) for one pass of 60
# steps that each draw a sixtieth of the data. All of MNIST in batches of 1,000 is that, and so are ten clients with a
# tenth of it in batches of 100, or a client of 3,840 images in batches of 64.
READINGS = {
    "one pass of 60 x 1000, adadelta": Reading(replace(SETTINGS["adadelta 1.0"], batch_size=1000), 60_000, 1),
    "one pass of 60 x 1000, adam 0.001": Reading(replace(SETTINGS["adam 0.001"], batch_size=1000), 60_000, 1),
    "ten clients of 60 x 100, adadelta": Reading(replace(SETTINGS["adadelta 1.0"], batch_size=100), 6_000, 10),
    "19 batches, adadelta": Reading(SETTINGS["adadelta 1.0"]),
    "60 batches, sgd 0.01": Reading(replace(SETTINGS["sgd, one epoch"], lr=0.01), 3840),
}


FIGURE_14 = Reading(SETTINGS["sgd, one epoch"])


def defended(dataset: Dataset, run: Run, name: str, reading: Reading, rounds: int) -> tuple[Recording, float, str]:
    """A federation with that defense: its first rounds, the accuracy after its last one, and epsilon in words."""
    training, samples = reading.training, reading.samples
    first = Keep(rounds=frozenset(range(ROUNDS)))
    recording = record(
        dataset, training, run, 0, rounds=rounds + 1, defenses=DEFENSES[name], keep=first, samples=samples
    )
    settings = Settings(rounds=rounds, training=training, defenses=DEFENSES[name])
    return recording, recording.accuracies[-1], spent(settings, samples)


def one_round(dataset: Dataset, run: Run, name: str, reading: Reading) -> tuple[float, str]:
    """The accuracy after one round of clients with random shares of the training images, and epsilon in words."""
    assert reading.clients is not None
    settings = Settings(rounds=1, training=reading.training, defenses=DEFENSES[name])
    options = {"width": 8} if run.scale == "quick" else {}
    network = make("models", "cnn-decaf", options).build(dataset.shape, len(dataset.classes), seed=run.seed)
    order = torch.randperm(len(dataset.train), generator=generator(run.seed, "shares"))
    shares = order[: reading.clients * reading.samples].chunk(reading.clients)
    clients = [dataset.train.take(rows) for rows in shares]
    federation = Horizontal(network, clients, settings, run.seed, len(dataset.classes), device=run.device)
    federation.run()
    return accuracy(federation.model, dataset.test.to(run.device)), spent(settings, reading.samples)


def spent(settings: Settings, samples: int) -> str:
    guarantee = guarantee_of(settings, [samples], 1)
    if guarantee is None:
        return ""
    return f"epsilon {guarantee.epsilon:.2f} at delta 1e-5 after {settings.rounds} rounds. "


@dataclass(frozen=True)
class DefendedAccuracy(Table):
    """Table XI: what dropout and DP-SGD cost, after several rounds, by each reading of what the paper leaves open."""

    name: ClassVar[str] = "000/XI"
    title: ClassVar[str] = "Accuracy of the model with each defense, MNIST"
    paper: ClassVar[str] = "000"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "XI")
        dataset, why_not = load_images("mnist", run)
        chosen = DEFENSES if run.scale == "full" else QUICK_DEFENSES
        for reading in READINGS if run.scale == "full" else list(READINGS)[:1]:
            for name in chosen:
                cell = {"reading": reading, "defense": name}
                if dataset is None:
                    yield not_runnable(cell, "paper", "accuracy, percent", printed[name], why_not)
                    continue
                yield self.row_of(dataset, run, reading, name, printed[name])

    def row_of(self, dataset: Dataset, run: Run, reading: str, name: str, printed: float) -> Row:
        if READINGS[reading].clients is not None:
            tested = len(dataset.test)
            value, note = one_round(dataset, run, name, READINGS[reading])
        else:
            tested = min(2000, len(dataset.test))
            rounds = 20 if run.scale == "full" else 6
            recording, value, said = defended(dataset, run, name, READINGS[reading], rounds)
            note = f"{said}By round: {', '.join(f'{100 * one:.0f}' for one in recording.accuracies)}. "
        interval = stats.binomtest(round(value * tested), tested).proportion_ci(0.95, method="wilson")
        score = Score(value, float(interval.low), float(interval.high), tested, 1 / len(dataset.classes))
        cell = {"reading": reading, "defense": name}
        return row(cell, "paper", score, printed, f"{note}n: test images.", "accuracy, percent")


@dataclass(frozen=True)
class Defended(Table):
    """Figure 14: error under dropout and DP-SGD, for users with all classes and users with null classes."""

    name: ClassVar[str] = "000/fig14"
    title: ClassVar[str] = "Error under dropout and DP-SGD, MNIST"
    paper: ClassVar[str] = "000"

    def rows(self, run: Run) -> Iterator[Row]:
        dataset, why_not = load_images("mnist", run)
        if dataset is None:
            yield not_runnable({"defense": "all"}, "paper", METRIC, None, why_not)
            return
        for name in DEFENSES if run.scale == "full" else QUICK_DEFENSES:
            recording, value, said = defended(dataset, run, name, FIGURE_14, ROUNDS)
            known = {"defense": DEFENSES[name]} if DEFENSES[name] else {}
            guesses: list[tuple[str, By, Proportions]] = [
                ("decaf as written", "paper", recording.guess(run.seed, solver="paper", rounds="single")),
                ("decaf, path bases", "fedspill", recording.guess(run.seed, solver="path")),
                ("composition-by-counts, told of it", "fedspill", by_counts(recording, run.seed, known)),
            ]
            for attack, by, guess in guesses:
                yield from by_nulls(
                    recording, guess, {"defense": name, "attack": attack}, by, f"{said}Accuracy {value:.2f}."
                )


def by_counts(recording: Recording, seed: int, known: Mapping[str, Any]) -> Proportions:
    guess = make("attacks", "composition-by-counts")(recording.view(**known), seed=seed)
    assert isinstance(guess, Proportions)
    return guess


def by_nulls(recording: Recording, guess: Proportions, cell: Mapping[str, Any], by: By, note: str) -> Iterator[Row]:
    """Two rows: clients that hold every class, and the others."""
    real = true_shares(guess, recording.trace.truth())
    errors = distance(guess.shares, real, 1)
    whole = (real > 0).all(1)
    for users, chosen in (("without null classes", whole), ("with null classes", ~whole)):
        senders = [origin.sender for origin, kept in zip(guess.of, chosen.tolist(), strict=True) if kept]
        own = by_client(errors[chosen], senders)
        even = by_client(distance(torch.full_like(real, 1 / real.shape[1]), real, 1)[chosen], senders)
        yield row({**cell, "users": users}, by, CompositionL1().summarise(Measured(own, even)), None, note)
