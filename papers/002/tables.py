"""Tables and figures of paper 002 (Wang et al., Eavesdrop) as runnable checks.

100 clients, 10 a round, 3 to 5 main labels of 60 samples and 2 others of 3, batches of 64, 3 local epochs, a plain
mean (Equation 4). The watcher is client 0: it sees the models and its own updates, knows labels per client, samples per
label and clients per round, as the paper grants, and holds 200 auxiliary samples of every label. "Owned" means a main
label. The paper's success rates have no trivial baseline; here they stand beside them.
"""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from fedspill.dataset import Dataset, Examples
from fedspill.defense import Defense
from fedspill.defenses.compression import Compression
from fedspill.errors import DataMissing
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import accuracy
from fedspill.leaks.groups.metrics import ExactGroups, LargestGroup, RankCorrelation
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.presence.metrics import BalancedPresence, PresenceSuccess
from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.metrics import QuantityError, WithinFivePercent, WithinOne, constants
from fedspill.leaks.quantity.round_truth import true_owners
from fedspill.metric import Measured, Metric, Score
from fedspill.models.heads import last_linear
from fedspill.partitions.shares import share_out
from fedspill.registry import make
from fedspill.reproduce import By, Row, Run, Table, not_runnable, published, verdict
from fedspill.seeds import generator, seed_of
from fedspill.threat import CURIOUS_CLIENT
from fedspill.trace import Keep, MemoryTrace
from fedspill.training import LocalTraining

WATCHER = "client:0"
PER_LABEL = 60
TOLERANCE = 3.0
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # data, model, options
    "mlp": ("mnist", "mlp", {"widths": [256, 64]}),
    "cnn": ("mnist", "cnn-eavesdrop", {"dropout": 0.0}),
    "lenet5": ("cifar10", "lenet5", {}),
    "resnet18": ("cifar10", "resnet18", {}),
    "fer2013": ("fer2013", "resnet18", {}),
    "ham10000": ("ham10000", "resnet18", {}),
}


@dataclass(frozen=True)
class Stage:
    """A stretch of a training: the learning rate, how many rounds pass before, and how many are watched."""

    title: str
    lr: float
    skip: int
    watch: int


@dataclass(frozen=True, eq=False)
class Watched:
    """What the watcher has of the watched rounds."""

    trace: MemoryTrace
    known: Mapping[str, Any]
    accuracy: float

    def guess(self, attack: str, seed: int, **options: Any) -> Any:
        view = self.trace.view(CURIOUS_CLIENT, me=WATCHER, knowledge=self.known)
        return make("attacks", attack, options)(view, seed=seed)


def load(name: str, run: Run) -> tuple[Dataset | None, str]:
    try:
        return make("datasets", name).load(run.data_dir), ""
    except DataMissing as error:
        return None, str(error)


def watch(
    dataset: Dataset,
    model: tuple[str, dict[str, Any]],
    stage: Stage,
    run: Run,
    *,
    repeat: int = 0,
    clients: int = 100,
    per_round: int = 10,
    auxiliary: int = 200,
    training: LocalTraining | None = None,
    defenses: tuple[Defense, ...] = (),
) -> Watched:
    """A federation of main labels, recorded while it is watched; auxiliary samples are as many as the data allow."""
    seed = seed_of(run.seed, "eavesdrop", repeat)
    split = make("partitions", "main-labels", {"per_label": PER_LABEL, "minor": 2, "minor_samples": 3, "reuse": True})
    held = min(auxiliary, int(torch.bincount(dataset.train.y).min()) // 2)
    shares = share_out(dataset, split, clients, auxiliary=held, rng=generator(seed, "shares"))
    build = partial(make("models", *model).build, dataset.shape, len(dataset.classes), seed=seed_of(seed, "net"))
    training = training or LocalTraining(batch_size=64, epochs=3)
    training = replace(training, lr=stage.lr)
    settings = Settings(
        rounds=stage.skip + stage.watch + 1,
        clients_per_round=per_round,
        weighting="uniform",
        training=training,
        defenses=defenses,
    )
    head = last_linear(build(), shares.clients[0].x[:2])
    protocol = {
        "classes": len(dataset.classes),
        "head_weight": head.weight,
        "head_bias": head.bias,
        "weighting": "uniform",
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": training.optimizer,
        "client_count": per_round,
    }
    rounds = frozenset(range(stage.skip, stage.skip + stage.watch + 1))
    trace = MemoryTrace(
        protocol, Keep(rounds=rounds, kinds=frozenset({"model", "update"}), clients=frozenset({WATCHER}))
    )
    federation = Horizontal(build(), list(shares.clients), settings, seed, len(dataset.classes), trace, run.device)
    for number in range(stage.skip + stage.watch):
        federation.round(number)
    trace.say(_handed_out(federation, stage.skip + stage.watch))
    tested = dataset.test.take(torch.arange(min(2000, len(dataset.test)))).to(run.device)
    known = {
        "architecture": partial(_on, build, run.device),
        "aux_data": shares.auxiliary,
        "labels_per_client": (3, 5),
        "samples": 4 * PER_LABEL,
    }
    return Watched(trace, known, accuracy(federation.model, tested))


def _handed_out(federation: Horizontal, number: int) -> Any:
    """The model that the next round would hand out: what the watcher compares the last round with."""
    from fedspill.federation.local import state_of
    from fedspill.messages import EVERYONE, SERVER, Message

    return Message(number, SERVER, EVERYONE, "model", copy.deepcopy(state_of(federation.model)))


def _on(build: Any, device: str) -> nn.Module:
    network: nn.Module = build()
    return network.to(device)


def row(cell: Mapping[str, Any], by: By, metric: str, score: Score, printed: float | None, note: str = "") -> Row:
    value, low, high, chance = (100 * x for x in (score.value, score.low, score.high, score.chance))
    judged = verdict(score, printed, tolerance=TOLERANCE, unit=100)
    return Row(cell, by, metric, printed, value, low, high, score.n, chance, judged, note)


def available(model: str, data: str, run: Run) -> tuple[Dataset | None, str]:
    """The data of a model, or the reason why it is not run: not there, or too much for two cores."""
    dataset, why_not = load(data, run)
    if run.scale == "quick" and model in ("resnet18", "fer2013", "ham10000"):
        return None, "Hours on a CPU: run with --scale full --device cuda."
    if run.scale == "quick" and model == "lenet5":
        return None, "Full scale."
    return dataset, why_not


@dataclass(frozen=True)
class Sniffing(Table):
    """Table III, with the setting in which labels are absent a third of the time beside the paper's own."""

    name: ClassVar[str] = "002/III"
    title: ClassVar[str] = "Class Sniffing: is a label in the round"
    paper: ClassVar[str] = "002"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "III")
        for model, (data, name, options) in MODELS.items():
            dataset, why_not = available(model, data, run)
            if dataset is None:
                yield not_runnable({"model": model}, "paper", "success, percent", printed[model], why_not)
                continue
            watched = 100 if run.scale == "full" else {"mlp": 30, "cnn": 10}[model]
            for per_round in (10, 2):
                stage = Stage("early", 0.01, 1, watched)
                seen = watch(dataset, (name, options), stage, run, per_round=per_round)
                yield from self._scored(seen, model, per_round, run, printed[model])

    def _scored(self, seen: Watched, model: str, per_round: int, run: Run, printed: float) -> Iterator[Row]:
        truth, guess = seen.trace.truth(), None
        figure = printed if per_round == 10 else None
        note = "" if per_round == 10 else "Two clients a round: labels are absent about a third of the time."
        for attack, by, options in (
            ("Algorithm 1", "paper", {"solver": "paper"}),
            ("sign theorem", "fedspill", {"solver": "sign"}),
            ("count above one half", "fedspill", {}),
        ):
            guess = seen.guess("class-sniffing", run.seed, **options)
            cell = {"model": model, "clients": per_round, "attack": attack}
            success, balanced = PresenceSuccess().score(guess, truth), BalancedPresence().score(guess, truth)
            yield row(cell, by, "success, percent", success, figure, note)  # type: ignore[arg-type]
            if balanced.status == "ok":
                yield row(cell, by, "balanced accuracy, percent", balanced, None, note)  # type: ignore[arg-type]
            if attack == "sign theorem":
                strict = BalancedPresence(owned="any").score(guess, truth)
                if strict.status == "ok":
                    about = "A label counts as present with a single sample."
                    yield row(cell, "fedspill", "balanced accuracy, any sample, percent", strict, None, about)
        always = Presence(guess.of, torch.ones_like(guess.present), guess.me)
        cell = {"model": model, "clients": per_round, "attack": "guess: always present"}
        yield row(cell, "baseline", "success, percent", PresenceSuccess().score(always, truth), figure, note)


# Stages by how far the model is trained; the learning rates are those that get there within tens of rounds.
STAGES: dict[str, tuple[Stage, ...]] = {
    "mlp": (
        Stage("barely trained", 0.01, 1, 14),
        Stage("accuracy 0.75", 0.03, 20, 12),
        Stage("accuracy 0.86", 0.1, 25, 12),
    ),
    "cnn": (Stage("barely trained", 0.01, 1, 8), Stage("accuracy 0.77", 0.05, 9, 8)),
    "lenet5": (Stage("barely trained", 0.1, 1, 10),),
    "resnet18": (Stage("barely trained", 0.1, 1, 10),),
    "fer2013": (Stage("barely trained", 0.02, 1, 10),),
    "ham10000": (Stage("barely trained", 0.1, 1, 10),),
}  # fmt: skip


def counted(seen: Watched, cell: Mapping[str, Any], run: Run, printed: float | None, note: str) -> Iterator[Row]:
    """Algorithm 2, ours and the constant guess, not rounded, on the same rounds."""
    truth, guess = seen.trace.truth(), None
    for attack, by, options in (
        ("Algorithm 2", "paper", {"solver": "paper"}),
        ("Algorithm 2, no filters", "paper", {"solver": "paper", "filters": False}),
        ("joint fit", "fedspill", {"solver": "nnls"}),
        ("auto", "fedspill", {}),
    ):
        guess = seen.guess("quantity-inference", run.seed, **options)
        others = {
            "rounded": WithinOne(rounded=True),
            "within 5 %": WithinFivePercent(),
        }
        more = ", ".join(f"{what} {100 * metric.score(guess, truth).value:.0f} %" for what, metric in others.items())
        aborts = 100 * float(torch.isnan(guess.clients).double().mean())
        error = QuantityError().score(guess, truth).value
        about = f"{more}, mean error {error:.2f}, aborts {aborts:.0f} %; {'; '.join(guess.notes)}. {note}"
        figure = None if attack.endswith("filters") else printed
        score = WithinOne().score(guess, truth)
        yield row({**cell, "attack": attack}, by, "within 1, percent", score, figure, about)  # type: ignore[arg-type]
    real = true_owners(guess.of, truth, guess.me, "main", guess.clients.shape[1]).double()
    for name, constant in zip(("constant", "constant, rounded"), constants(real), strict=False):
        score = WithinOne().score(ClassQuantities(guess.of, constant.contiguous(), guess.me), truth)
        yield row({**cell, "attack": f"guess: {name}"}, "baseline", "within 1, percent", score, printed)


@dataclass(frozen=True)
class Quantity(Table):
    """Table IV, by how far the model is trained, which the paper does not say."""

    name: ClassVar[str] = "002/IV"
    title: ClassVar[str] = "Quantity Inference: how many clients own a label"
    paper: ClassVar[str] = "002"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "IV")
        for model, (data, name, options) in MODELS.items():
            dataset, why_not = available(model, data, run)
            if dataset is None:
                yield not_runnable({"model": model}, "paper", "within 1, percent", printed[model], why_not)
                continue
            for stage in STAGES[model]:
                if run.scale == "quick":
                    stage = replace(stage, watch=4 if model == "cnn" else 6)
                seen = watch(dataset, (name, options), stage, run)
                cell = {"model": model, "stage": stage.title}
                yield from counted(seen, cell, run, printed[model], f"Accuracy at the end {seen.accuracy:.2f}.")


@dataclass(frozen=True)
class CompressedQuantity(Table):
    """Table VI: of the weights into each output neuron clients send the largest only."""

    name: ClassVar[str] = "002/VI"
    title: ClassVar[str] = "Quantity Inference against compression, CNN"
    paper: ClassVar[str] = "002"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "VI")
        dataset, why_not = load("mnist", run)
        rates = list(zip(printed["rates"], printed["success"], strict=True))
        for rate, figure in rates if run.scale == "full" else rates[::5]:
            if dataset is None:
                yield not_runnable({"compression": rate}, "paper", "within 1, percent", figure, why_not)
                continue
            defenses = (Compression(drop=rate, of="head"),) if rate else ()
            stage = Stage("barely trained", 0.01, 1, 20 if run.scale == "full" else 4)
            seen = watch(dataset, MODELS["cnn"][1:], stage, run, defenses=defenses)
            yield from counted(seen, {"compression": rate}, run, figure, f"Printed aborts: {printed['aborts']}.")


class QuantityFigure(Table, ABC):
    """A figure that varies one setting of Quantity Inference; MNIST with the MLP at quick scale, the CNN in full."""

    paper: ClassVar[str] = "002"
    full: ClassVar[tuple[Any, ...]]
    quick: ClassVar[tuple[Any, ...]]

    def options(self, value: Any) -> dict[str, Any]:
        raise NotImplementedError

    def rows(self, run: Run) -> Iterator[Row]:
        dataset, why_not = load("mnist", run)
        if dataset is None:
            yield not_runnable({"value": "all"}, "paper", "within 1, percent", None, why_not)
            return
        model = MODELS["cnn" if run.scale == "full" else "mlp"][1:]
        for value in self.full if run.scale == "full" else self.quick:
            stage = Stage("barely trained", 0.01, 1, 20 if run.scale == "full" else 4)
            seen = watch(dataset, model, stage, run, **self.options(value))
            yield from counted(seen, {"value": value}, run, None, "")


@dataclass(frozen=True)
class BatchSizes(QuantityFigure):
    """Figure 6."""

    name: ClassVar[str] = "002/fig6"
    title: ClassVar[str] = "Quantity Inference by batch size"
    paper: ClassVar[str] = "002"
    full: ClassVar[tuple[Any, ...]] = (5, 10, 20, 40, 64)
    quick: ClassVar[tuple[Any, ...]] = (20, 64)

    def options(self, value: Any) -> dict[str, Any]:
        return {"training": LocalTraining(batch_size=value, epochs=3)}


@dataclass(frozen=True)
class LocalEpochs(QuantityFigure):
    """Figure 7."""

    name: ClassVar[str] = "002/fig7"
    title: ClassVar[str] = "Quantity Inference by local epochs"
    paper: ClassVar[str] = "002"
    full: ClassVar[tuple[Any, ...]] = (1, 3, 5, 10)
    quick: ClassVar[tuple[Any, ...]] = (1, 5)

    def options(self, value: Any) -> dict[str, Any]:
        return {"training": LocalTraining(batch_size=64, epochs=value)}


@dataclass(frozen=True)
class SelectedShare(QuantityFigure):
    """Figure 8."""

    name: ClassVar[str] = "002/fig8"
    title: ClassVar[str] = "Quantity Inference by clients per round"
    paper: ClassVar[str] = "002"
    full: ClassVar[tuple[Any, ...]] = (10, 20, 30, 40, 50)
    quick: ClassVar[tuple[Any, ...]] = (10, 30)

    def options(self, value: Any) -> dict[str, Any]:
        return {"per_round": value}


@dataclass(frozen=True)
class Participants(QuantityFigure):
    """Figure 9: a tenth of the participants take part in a round."""

    name: ClassVar[str] = "002/fig9"
    title: ClassVar[str] = "Quantity Inference by participants"
    paper: ClassVar[str] = "002"
    full: ClassVar[tuple[Any, ...]] = (100, 200, 500, 1000)
    quick: ClassVar[tuple[Any, ...]] = (100, 200)

    def options(self, value: Any) -> dict[str, Any]:
        return {"clients": value, "per_round": value // 10}


@dataclass(frozen=True)
class Whole(Table):
    """Table V: labels in groups of Q, Q/4 and Q/5 samples, spread evenly over the clients of a real federation."""

    name: ClassVar[str] = "002/V"
    title: ClassVar[str] = "Whole Determination: which labels are frequent"
    paper: ClassVar[str] = "002"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "V")
        for model, (data, name, options) in MODELS.items():
            dataset, why_not = load(data, run)
            why_not = why_not or ("" if data == "mnist" else "Of MNIST only: other data lack 2,500 images of a label.")
            if dataset is None or why_not:
                yield not_runnable({"model": model}, "paper", "grouped exactly, percent", printed[model][0], why_not)
                continue
            runs = 20 if run.scale == "full" else {"mlp": 6, "cnn": 3}[model]
            stages = ("middle", "late") if run.scale == "full" or model == "mlp" else ("middle",)
            found: dict[tuple[str, str, str], list[Measured]] = {}
            for repeat in range(runs):
                for stage, seen in trained(dataset, (name, options), run, repeat, stages).items():
                    collect(found, stage, seen, run)
            for (stage, attack, metric), parts in found.items():
                whole = Measured.join(parts)
                score = METRICS[metric].summarise(whole)
                figure = float(printed[model][stage == "late"]) if metric == "grouped exactly" else None
                by: By = "paper" if attack == "ratio vectors" else "fedspill"
                yield row({"model": model, "stage": stage, "attack": attack}, by, f"{metric}, percent", score, figure)


METRICS: dict[str, Metric] = {
    "grouped exactly": ExactGroups(),
    "large from small": LargestGroup(),
    "rank correlation": RankCorrelation(),
}


def collect(found: dict[tuple[str, str, str], list[Measured]], stage: str, seen: Watched, run: Run) -> None:
    for attack, options in (
        ("ratio vectors", {"solver": "paper"}),
        ("implied prior", {"solver": "prior"}),
        ("path of the rounds", {}),
    ):
        guess = seen.guess("whole-determination", run.seed, **options)
        for name, metric in METRICS.items():
            found.setdefault((stage, attack, name), []).append(metric.measure(guess, seen.trace.truth()))


def trained(
    dataset: Dataset, model: tuple[str, dict[str, Any]], run: Run, repeat: int, stages: tuple[str, ...]
) -> dict[str, Watched]:
    """A federation with Q, Q/4 and Q/5 samples of a label in three random groups, watched up to each stage.

    20 clients with an even share of everything, all in every round, 1 local epoch at 0.05: Q = 2,500.
    """
    seed = seed_of(run.seed, "whole", repeat)
    rng = generator(seed, "groups")
    order = torch.randperm(len(dataset.classes), generator=rng)
    amounts = torch.empty(len(order), dtype=torch.int64)
    for place, label in enumerate(order.tolist()):
        amounts[label] = (2500, 625, 500)[min(place // 3, 2)]
    pools = [torch.nonzero(dataset.train.y == c).flatten() for c in range(len(order))]
    pools = [pool[torch.randperm(len(pool), generator=rng)] for pool in pools]
    auxiliary = dataset.train.take(torch.cat([pool[-100:] for pool in pools]))
    mixed = torch.cat([pool[: int(amounts[c])] for c, pool in enumerate(pools)])
    mixed = mixed[torch.randperm(len(mixed), generator=rng)]
    clients: list[Examples] = [dataset.train.take(part) for part in torch.chunk(mixed, 20)]
    build = partial(make("models", *model).build, dataset.shape, len(order), seed=seed_of(seed, "net"))
    training = LocalTraining(lr=0.05, batch_size=64)
    head = last_linear(build(), clients[0].x[:2])
    protocol = {
        "classes": len(order), "head_weight": head.weight, "head_bias": head.bias, "batch_size": 64,
        "local_lr": training.lr, "local_epochs": 1, "optimizer": "sgd", "client_count": 20,
    }  # fmt: skip
    trace = MemoryTrace(protocol, Keep(kinds=frozenset({"model"})))
    settings = Settings(rounds=1, weighting="uniform", training=training)
    federation = Horizontal(build(), clients, settings, seed, len(order), trace, run.device)
    known = {
        "architecture": partial(_on, build, run.device), "aux_data": auxiliary,
        "labels_per_client": len(order), "samples": len(mixed) // 20,
    }  # fmt: skip
    tested = dataset.test.take(torch.arange(1000)).to(run.device)
    reached: dict[str, Watched] = {}
    for number in range(150):
        score = accuracy(federation.model, tested)
        for stage, bar in (("middle", 0.5), ("late", 0.85)):
            if score >= bar and stage in stages and stage not in reached:
                reached[stage] = Watched(_up_to(trace, federation, number), known, score)
        if len(reached) == len(stages):
            break
        federation.round(number)
    return reached


def _up_to(trace: MemoryTrace, federation: Horizontal, number: int) -> MemoryTrace:
    """A copy of what was said so far, with the model of the present round; of long trainings the last 30 rounds."""
    recent = [message for message in trace.messages() if message.round >= number - 30]
    copied = MemoryTrace.of([*recent, _handed_out(federation, number)], trace.protocol)
    totals = torch.stack([torch.bincount(own.y.cpu(), minlength=federation.classes) for own in federation.clients])
    from fedspill.messages import SERVER
    from fedspill.trace import Origin

    copied.note_truth(Origin(number, SERVER), "label_totals", totals.sum(0))
    return copied
