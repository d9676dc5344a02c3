"""Tables of paper 003 (Gat and Sharif, Harmful Bias, AISec 2024) as runnable checks, in the authors' protocol.

A client's update is ten local SGD steps at learning rate 0.001 on ceil(B/10) samples each, and what the server reads is
the sum of the step gradients. Batches are unbalanced: half of one class, a quarter of another, the rest of any. Each
batch of an untrained table meets a freshly initialised network; the same batches serve every attack.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.data.cifar100 import Cifar100
from fedspill.data.fashion_subclasses import FashionSubclasses
from fedspill.dataset import Dataset, DataSource, Examples
from fedspill.defense import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.errors import DataMissing, NotApplicable
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.inputs import Reconstruction
from fedspill.leaks.inputs.inverting_gradients import InvertingGradients
from fedspill.leaks.inputs.metrics import InputsLpips, InputsMse, InputsPsnr, InputsSsim
from fedspill.leaks.labels.ebi import EBI, ebi_counts
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.llbg import LLBG
from fedspill.leaks.labels.llbg_aux import LLBGAux
from fedspill.leaks.labels.llbg_gamma import LLBGGamma
from fedspill.leaks.labels.llg import LLG
from fedspill.leaks.labels.metrics import LabelSuccess, baselines, true_counts
from fedspill.messages import Message
from fedspill.metric import Metric, Score
from fedspill.model_spec import ModelSpec
from fedspill.models.cnn import Cnn
from fedspill.models.heads import last_linear
from fedspill.models.mlp import Mlp
from fedspill.models.resnet import ResNet32
from fedspill.models.vgg import Vgg11, Vgg19
from fedspill.models.vit import Vit
from fedspill.observe.probe import class_confidence
from fedspill.partition import Partition
from fedspill.partitions.drawing import draw
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.partitions.uniform_batch import UniformBatch
from fedspill.reproduce import By, Row, Run, Table, not_runnable, published, verdict
from fedspill.seeds import generator, seed_of
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import Keep, MemoryTrace, Origin, Truth
from fedspill.training import LocalTraining

log = logging.getLogger("fedspill.papers")

METRIC = "ASR, percent of labels"
TOLERANCE = 2.0  # points
LEARNING_RATE, LOCAL_STEPS = 0.001, 10
OURS = "labels"
UNAWARE = "labels, not told of the defense"
UNTRAINED: dict[str, Attack] = {"llg": LLG(), "ebi": EBI(), "llbg": LLBG()}
GAMMAS: dict[str, Attack] = {f"llbg-gamma {gamma}": LLBGGamma(gamma) for gamma in (0.5, 0.7, 0.9)}
TRAINED: dict[str, Attack] = {"llg": LLG(), "ebi": EBI(), "llbg-aux": LLBGAux()}
WEIGHTS_ONLY: dict[str, Attack] = {"llg": LLG()}
DEFENDED_FULL = 100  # batches a setting
NO_IMAGENET = (
    "Needs ImageNet's validation images as a folder `imagenet` of class folders in the data folder{more}; "
    "neither is on this machine."
)


@dataclass(frozen=True, eq=False)
class Setup:
    """What is attacked: networks of some kind, on batches of some kind."""

    dataset: Dataset
    network: Callable[[int], nn.Module]  # the network that batch number i meets
    partition: Partition
    batch: int
    victims: Examples
    auxiliary: Examples  # the adversary's own, disjoint from what victims hold
    labelled: bool = False  # whether it knows their labels
    attacks: Mapping[str, Attack] = field(default_factory=lambda: UNTRAINED)
    lr: float = LEARNING_RATE
    defenses: tuple[Defense, ...] = ()  # on the wire; ours is told of them


@dataclass(frozen=True)
class UntrainedCifar100(Table):
    """Table 1: untrained models on CIFAR-100, B = 128."""

    name: ClassVar[str] = "003/1"
    title: ClassVar[str] = "Labels of untrained models on CIFAR-100, FedAvg, B = 128"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _untrained(run, "1", HalfQuarterRest(batch=128, shortage="reuse"), 128)


@dataclass(frozen=True)
class UntrainedImageNet(Table):
    """Table 2: untrained models on ImageNet, B = 128."""

    name: ClassVar[str] = "003/2"
    title: ClassVar[str] = "Labels of untrained models on ImageNet, FedAvg, B = 128"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _imagenet("2", "")


@dataclass(frozen=True)
class BatchSizes(Table):
    """Table 3: VGG19 at four batch sizes, and what class availability alone does to EBI.

    The published sampler fills a class with what there is: 100 images in CIFAR-100's test split, so that a batch of 256
    or more is not half of one class. Where the split is only partly here, its images are repeated to 100 a class.
    """

    name: ClassVar[str] = "003/3"
    title: ClassVar[str] = "Labels of an untrained VGG19 on CIFAR-100 by batch size"
    paper: ClassVar[str] = "003"

    available: ClassVar[int] = 100

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "3")
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        for size in (128, 256, 512, 1024):
            cell = {"batch": size}
            if dataset is None:
                yield from _missing(cell, printed[str(size)], why_not)
                continue
            repeats = -(-self.available * len(dataset.classes) // len(dataset.test))
            pool = Examples.join([dataset.test] * repeats)
            number = 100 if run.scale == "full" else {128: 4, 256: 3, 512: 3, 1024: 3}[size]
            setup = Setup(
                dataset,
                _fresh(Vgg19(), dataset, run),
                HalfQuarterRest(batch=size, shortage="cap"),
                size,
                pool,
                _unlabelled(dataset, run),
            )
            note = f"{dataset.note} Test images repeated to {self.available} a class.".strip()
            yield from rows_of(attack_batches(setup, number, run), cell, printed[str(size)], note)
            for label, cap in (
                (f"ebi, {self.available} images a class, no network", self.available),
                ("ebi, no cap", size),
            ):
                found = score(*_counts_alone(size, cap, len(dataset.classes), run))
                figure = printed[str(size)]["ebi"]
                judged = verdict(found, figure, tolerance=TOLERANCE, unit=100)
                why = "EBI on ideal gradients (probability 1/n): what class availability alone does to it."
                yield _row({**cell, "attack": label}, "baseline", figure, found, judged, why)


@dataclass(frozen=True)
class UniformLabels(Table):
    """Table 4: i.i.d. labels, B = 100."""

    name: ClassVar[str] = "003/4"
    title: ClassVar[str] = "Uniform labels of untrained models on CIFAR-100, B = 100"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _untrained(run, "4", UniformBatch(batch=100, reuse=True), 100)


@dataclass(frozen=True)
class TrainedImageNet(Table):
    """Table 5: pre-trained ImageNet models; here also networks that are trained on what is at hand."""

    name: ClassVar[str] = "003/5"
    title: ClassVar[str] = "Labels of trained models, confidence from auxiliary data"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _imagenet("5", " and torchvision's pre-trained weights")
        yield from _stand_ins(run, TRAINED)


@dataclass(frozen=True)
class TrainedGamma(Table):
    """Table 6: one confidence for all classes."""

    name: ClassVar[str] = "003/6"
    title: ClassVar[str] = "Labels of trained models, one confidence for all classes"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _imagenet("6", " and torchvision's pre-trained weights")
        yield from _stand_ins(run, GAMMAS)


@dataclass(frozen=True)
class Confidence(Table):
    """Table 7: the mean confidence of trained models on 10 images a class."""

    name: ClassVar[str] = "003/7"
    title: ClassVar[str] = "Mean confidence of trained models"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from _imagenet("7", " and torchvision's pre-trained weights", metric="mean confidence")
        for kind, source in STAND_INS.items():
            dataset, why_not = load_images(source, run)
            cell = {"model": kind, "attack": "confidence"}
            if dataset is None:
                yield not_runnable(cell, "paper", "mean confidence", None, why_not)
                continue
            network, _, auxiliary = trained_network(_stand_in_spec(kind), dataset, run)
            each = class_confidence(network.eval(), auxiliary, len(dataset.classes))
            low, high = (float(each.quantile(q)) for q in (0.025, 0.975))
            note = "No printed figure: our own network. Interval: 95 % of the classes."
            value = float(each.mean())
            yield Row(
                cell, "paper", "mean confidence", None, value, low, high, len(each), 1 / len(each), "not runnable", note
            )


@dataclass(frozen=True)
class Activations(Table):
    """Table 8: the last hidden activation of the MLP."""

    name: ClassVar[str] = "003/8"
    title: ClassVar[str] = "Labels of untrained MLPs on CIFAR-100 by activation"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "8")
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        for activation in ("relu", "leaky-relu", "sigmoid", "tanh"):
            cell = {"activation": activation}
            if dataset is None:
                yield from _missing(cell, printed[activation], why_not)
                continue
            spec = Mlp(widths=(1024, 1024, 1024), last_activation=activation)
            setup = _unbalanced(dataset, _fresh(spec, dataset, run), 128, run)
            number = 100 if run.scale == "full" else 10
            yield from rows_of(attack_batches(setup, number, run), cell, printed[activation], batch_note(dataset))


@dataclass(frozen=True)
class VisionTransformer(Table):
    """Table 9: ViT. Untrained with weights of our own, on CIFAR-100; the trained one needs ImageNet and weights.

    The text says B = 64, the caption 128; 64 is taken.
    """

    name: ClassVar[str] = "003/9"
    title: ClassVar[str] = "Labels of a Vision Transformer, B = 64"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "9")
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        if dataset is None:
            yield from _missing({"stage": "untrained"}, printed["untrained"], why_not)
        else:
            setup = _unbalanced(dataset, _fresh(Vit(), dataset, run), 64, run)
            number = 100 if run.scale == "full" else 8
            note = f"{batch_note(dataset)} A small ViT, 32 pixels and 100 classes, for ViT-B/16 on ImageNet."
            yield from rows_of(attack_batches(setup, number, run), {"stage": "untrained"}, printed["untrained"], note)
        yield from _missing(
            {"stage": "trained"}, printed["trained"], NO_IMAGENET.format(more=" and pre-trained weights")
        )


@dataclass(frozen=True)
class InputsFromGradients(Table):
    """Table 10: what labels are worth to Inverting Gradients, and what exact recovery makes of the same gradients.

    B = 4, half of one label; untrained MLP, last activation tanh, FedSGD. Inverting Gradients with total variation 0.2
    and signed Adam for 24,000 steps, here 400 at quick scale, with the schedule that goes with them.
    """

    name: ClassVar[str] = "003/10"
    title: ClassVar[str] = "Inputs of an untrained Tanh MLP on CIFAR-100, B = 4, by label attack"
    paper: ClassVar[str] = "003"

    batch: ClassVar[int] = 4

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "10")
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        if dataset is None:
            for labels in ("llg", "llbg"):
                for word, figure in printed[labels].items():
                    yield not_runnable({"attack": labels, "score": word}, "paper", word, figure, why_not)
            return
        number, steps = (20, 24_000) if run.scale == "full" else (3, 400)
        raw = Cifar100().load(run.data_dir).train.x  # the scale of pixels, which scores are about
        pixels = (raw.mean((0, 2, 3))[:, None, None], raw.std((0, 2, 3))[:, None, None])
        partition = HalfQuarterRest(batch=self.batch, shortage="reuse")
        mlp = _fresh(Mlp(widths=(1024, 1024, 1024), last_activation="tanh"), dataset, run)
        setup = Setup(dataset, mlp, partition, self.batch, dataset.test, _unlabelled(dataset, run))
        attacks: dict[str, tuple[Attack, By, str]] = {
            "ours": (Reconstruction(), "fedspill", batch_note(dataset)),
        }
        for labels in ("llg", "llbg"):
            attack = InvertingGradients(labels_from=labels, steps=steps, variation=0.2, unexplained=float("inf"))
            attacks[labels] = (attack, "paper", f"{steps:,} steps.")
        for name, (made, by, note) in attacks.items():
            guess, truth = reconstructed(setup, made, number, run, pixels)
            yield from rows_of_inputs(guess, truth, name, by, printed.get(name, {}), note)


class Defended(Table, ABC):
    """One of Tables 11 to 13: VGG19, untrained, B = 128, with a defense of several strengths on the wire.

    Clipping and noise act on the gradient of every local step, compression on the update. The relative accuracy that
    the paper prints beside them needs a VGG19 trained for each strength, which utility.py beside this file does.
    """

    paper: ClassVar[str] = "003"

    @abstractmethod
    def settings(self) -> dict[str, tuple[Defense, ...]]:
        """By the name of the row in expected.json, or a name of ours where nothing is printed."""

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, self.name.partition("/")[2])
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        number = DEFENDED_FULL if run.scale == "full" else 3
        for name, defenses in self.settings().items():
            figures = printed.get(name, {})
            if dataset is None:
                yield from _missing({"setting": name}, figures, why_not)
                continue
            setup = replace(_unbalanced(dataset, _fresh(Vgg19(), dataset, run), 128, run), defenses=defenses)
            yield from rows_of(attack_batches(setup, number, run), {"setting": name}, figures, batch_note(dataset))


@dataclass(frozen=True)
class Clipped(Defended):
    """Table 11: clipping at several norms, noise 0.01 (the caption; the text says 0.1), and without noise."""

    name: ClassVar[str] = "003/11"
    title: ClassVar[str] = "Labels of an untrained VGG19 behind clipping"
    paper: ClassVar[str] = "003"

    def settings(self) -> dict[str, tuple[Defense, ...]]:
        norms: dict[str, float | None] = {"0.1": 0.1, "0.5": 0.5, "1": 1.0, "1.5": 1.5, "none": None}
        noised = {name: _each_step(norm, 0.01) for name, norm in norms.items()}
        return noised | {f"{name}, no noise": _each_step(norm, 0.0) for name, norm in norms.items() if norm}


@dataclass(frozen=True)
class Noised(Defended):
    """Table 12: noise of several sizes, clipping at 1."""

    name: ClassVar[str] = "003/12"
    title: ClassVar[str] = "Labels of an untrained VGG19 behind noise"
    paper: ClassVar[str] = "003"

    sigmas: ClassVar[tuple[float, ...]] = (0.0, 0.01, 0.1, 0.3, 0.5)

    def settings(self) -> dict[str, tuple[Defense, ...]]:
        return {f"{sigma:g}": _each_step(1.0, sigma) for sigma in self.sigmas}

    def rows(self, run: Run) -> Iterator[Row]:
        yield from super().rows(run)
        dataset, _ = load_images(Cifar100(normalize=True), run)
        if dataset is None:
            return
        for sigma in (0.1, 0.3):  # a network whose gradients are three times as long as the norm they are clipped to
            setup = _unbalanced(dataset, _fresh(MODELS["mlp"], dataset, run), 128, run)
            setup = replace(setup, defenses=_each_step(1.0, sigma))
            number = DEFENDED_FULL if run.scale == "full" else 6
            note = f"{batch_note(dataset)} Nothing is printed for the MLP."
            yield from rows_of(attack_batches(setup, number, run), {"setting": f"mlp, {sigma:g}"}, {}, note)
        network = _fresh(Vgg19(), dataset, run)(0).to(run.device)
        energy = push_energy(network, dataset.test.x[:: len(dataset.test) // 16])
        for sigma in self.sigmas[1:]:
            for bound, factor in BOUNDS.items():
                found = score(*_told_the_rest(sigma, factor * energy, len(dataset.classes), run))
                why = f"Not an attack: a sample pushes with {energy:.2f} times the energy of the last bias."
                yield _row({"setting": f"{sigma:g}", "attack": bound}, "baseline", None, found, "not runnable", why)


@dataclass(frozen=True)
class Compressed(Defended):
    """Table 13: the smallest coordinates of each tensor left out."""

    name: ClassVar[str] = "003/13"
    title: ClassVar[str] = "Labels of an untrained VGG19 behind compression"
    paper: ClassVar[str] = "003"

    def settings(self) -> dict[str, tuple[Defense, ...]]:
        return {f"{drop:g}": (Compression(drop=drop),) for drop in (0.0, 0.1, 0.4, 0.8, 0.9, 0.99)}


def _each_step(norm: float | None, sigma: float) -> tuple[Defense, ...]:
    return (ClipNoise(clip=norm, sigma=sigma, per="step"),)


@dataclass(frozen=True)
class WithoutBias(Table):
    """Table 14: VGG11 with and without the last bias, untrained and trained."""

    name: ClassVar[str] = "003/14"
    title: ClassVar[str] = "Labels of VGG11 on CIFAR-100 with and without a last bias"
    paper: ClassVar[str] = "003"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "14")
        dataset, why_not = load_images(Cifar100(normalize=True), run)
        for last_bias in (True, False):
            ending = "with bias" if last_bias else "without bias"
            spec = Vgg11(last_bias=last_bias)
            for stage in ("untrained", "trained"):
                name = f"{stage}, {ending}"
                if dataset is None or (stage == "trained" and run.scale == "quick"):
                    yield from _missing({"vgg11": name}, printed[name], why_not or "Trained at full scale only.")
                    continue
                attacks = WEIGHTS_ONLY if not last_bias else UNTRAINED if stage == "untrained" else TRAINED
                if stage == "untrained":
                    setup = _unbalanced(dataset, _fresh(spec, dataset, run), 128, run, attacks)
                    note = batch_note(dataset)
                else:
                    network, victims, auxiliary = trained_network(spec, dataset, run)
                    setup = _trained_setup(dataset, network, victims, auxiliary, attacks)
                    note = f"{batch_note(dataset)} Trained here on {len(dataset.train) - len(auxiliary)} images."
                number = 100 if run.scale == "full" else 4
                yield from rows_of(attack_batches(setup, number, run), {"vgg11": name}, printed[name], note)


MODELS: dict[str, ModelSpec] = {
    "mlp": Mlp(widths=(1024, 1024, 1024)),
    "cnn": Cnn(width=256),
    "vgg19": Vgg19(),
    "resnet32": ResNet32(width=10),  # the authors' network is ten times as wide as the usual one
}
QUICK: dict[str, int] = {"mlp": 20, "cnn": 4, "vgg19": 4, "resnet32": 0}  # batches that fit into two minutes
STAND_INS: dict[str, DataSource] = {
    "mlp on fashion-subclasses": FashionSubclasses(normalize=True),
    "mlp on cifar100": Cifar100(normalize=True),
}


def _stand_in_spec(kind: str) -> ModelSpec:
    return Mlp(widths=(512, 512, 512))


def _untrained(run: Run, table: str, partition: Partition, size: int) -> Iterator[Row]:
    """The four CIFAR-100 models, and ours under FedSGD for the one that drifts."""
    printed = published("003", table)
    dataset, why_not = load_images(Cifar100(normalize=True), run)
    for model, spec in MODELS.items():
        cell = {"model": model}
        number = 100 if run.scale == "full" else QUICK[model]
        if dataset is None or number == 0:
            yield from _missing(
                cell, printed[model], why_not or "Minutes a batch on a CPU: run at full scale on a GPU."
            )
            continue
        note = batch_note(dataset)
        if run.scale == "quick" and model == "cnn":
            spec, note = Cnn(width=64), f"{note} A quarter of the paper's width at quick scale."
        setup = Setup(dataset, _fresh(spec, dataset, run), partition, size, dataset.test, _unlabelled(dataset, run))
        yield from rows_of(attack_batches(setup, number, run), cell, printed[model], note)
        if model == "resnet32":
            found = attack_batches(setup, number, run, algorithm="fedsgd")
            more = f"{note} FedSGD, for which the paper prints nothing; held against its FedAvg figures."
            yield from rows_of(found, {"model": "resnet32, fedsgd"}, printed[model], more)


def _imagenet(table: str, more: str, metric: str = METRIC) -> Iterator[Row]:
    for model, figures in published("003", table).items():
        if model != "unit":
            yield from _missing({"model": model}, figures, NO_IMAGENET.format(more=more), metric)


def _stand_ins(run: Run, attacks: Mapping[str, Attack]) -> Iterator[Row]:
    """Networks that are trained here, in place of the pre-trained ones; there is no printed figure for them."""
    for kind, source in STAND_INS.items():
        dataset, why_not = load_images(source, run)
        if dataset is None:
            yield from _missing({"model": kind}, dict.fromkeys(attacks), why_not)
            continue
        network, victims, auxiliary = trained_network(_stand_in_spec(kind), dataset, run)
        setup = _trained_setup(dataset, network, victims, auxiliary, attacks)
        number = 100 if run.scale == "full" else 10
        yield from rows_of(
            attack_batches(setup, number, run), {"model": kind}, {}, "No printed figure: our own network."
        )


def _missing(
    cell: Mapping[str, Any], printed: Mapping[str, float | None], why: str, metric: str = METRIC
) -> Iterator[Row]:
    for attack, figure in printed.items():
        yield not_runnable({**cell, "attack": attack}, "paper", metric, figure, why)


def load_images(source: DataSource, run: Run) -> tuple[Dataset | None, str]:
    """The data set with normalised inputs, or the reason why it is not there."""
    try:
        return source.load(run.data_dir), ""
    except DataMissing as error:
        return None, str(error)


def batch_note(dataset: Dataset) -> str:
    """What a reader must know about the batches."""
    return f"{dataset.note} Images repeat where a class has fewer than a batch asks for.".strip()


def _fresh(spec: ModelSpec, dataset: Dataset, run: Run) -> Callable[[int], nn.Module]:
    """A newly initialised network for every batch."""
    return lambda index: spec.build(dataset.shape, len(dataset.classes), seed=seed_of(run.seed, "network", index))


def _unlabelled(dataset: Dataset, run: Run) -> Examples:
    order = torch.randperm(len(dataset.train), generator=generator(run.seed, "auxiliary"))
    return dataset.train.take(order[:64])


def _unbalanced(
    dataset: Dataset,
    network: Callable[[int], nn.Module],
    size: int,
    run: Run,
    attacks: Mapping[str, Attack] = UNTRAINED,
) -> Setup:
    partition = HalfQuarterRest(batch=size, shortage="reuse")
    return Setup(dataset, network, partition, size, dataset.test, _unlabelled(dataset, run), attacks=attacks)


def _trained_setup(
    dataset: Dataset, network: nn.Module, victims: Examples, auxiliary: Examples, attacks: Mapping[str, Attack]
) -> Setup:
    partition = HalfQuarterRest(batch=128, shortage="reuse")
    return Setup(
        dataset, lambda _: copy.deepcopy(network), partition, 128, victims, auxiliary, labelled=True, attacks=attacks
    )


def trained_network(spec: ModelSpec, dataset: Dataset, run: Run) -> tuple[nn.Module, Examples, Examples]:
    """A network trained on all but 10 auxiliary images a class; victims hold test images. Returns all three."""
    classes = len(dataset.classes)
    mine = draw(dataset.train, torch.full((1, classes), 10), generator(run.seed, "labelled auxiliary"))[0]
    rest = torch.ones(len(dataset.train), dtype=torch.bool)
    rest[mine] = False
    train = dataset.train.take(rest.nonzero().flatten())
    network = spec.build(dataset.shape, classes, seed=seed_of(run.seed, "trained network")).to(run.device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    rng = generator(run.seed, "training")
    passes = max(3, min(20, 120_000 // len(train)))
    network.train()
    for _ in range(passes):
        for batch in torch.split(torch.randperm(len(train), generator=rng), 128):
            optimizer.zero_grad()
            x, y = train.x[batch].to(run.device), train.y[batch].to(run.device)
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network.cpu(), dataset.test, dataset.train.take(mine)


@dataclass(frozen=True, eq=False)
class Result:
    """What one algorithm got on the common batches."""

    attack: str
    by: By
    score: Score


def attack_batches(setup: Setup, number: int, run: Run, *, algorithm: str = "fedavg") -> list[Result]:
    """All attacks on the same batches, each trained on by its network; then what guessing would get."""
    counts, real = attacked(setup, number, run, algorithm=algorithm)
    results = [
        Result(name, "fedspill" if name in (OURS, UNAWARE) else "paper", score(found, real))
        for name, found in counts.items()
    ]
    names = ("even counts", "commonest class", "random labels")
    return results + [Result(n, "baseline", score(c, real)) for n, c in zip(names, baselines(real), strict=True)]


def attacked(setup: Setup, number: int, run: Run, *, algorithm: str = "fedavg") -> tuple[dict[str, Tensor], Tensor]:
    """Counts (batches, classes) by attack, and the true ones; batches on which a network diverged are left out."""
    shares = setup.partition.split(setup.victims, number, generator(run.seed, "batches", setup.batch))
    counts: dict[str, list[Tensor]] = {}
    truths = []
    for index, share in enumerate(shares):
        network = setup.network(index)
        trace = record_update(network, setup, setup.victims.take(share), run, algorithm)
        known: dict[str, Any] = {"architecture": partial(_evaluated_on, network, run.device)}
        known["unlabelled_aux"] = setup.auxiliary.x
        if setup.labelled:
            known["aux_data"] = setup.auxiliary
        ours: dict[str, Attack] = {OURS: Labels()}
        if setup.defenses:
            ours = {UNAWARE: Labels(), **ours}
        found: dict[str, LabelCounts] = {}
        try:
            for name, attack in {**setup.attacks, **ours}.items():
                whole = name in ours or isinstance(attack, LLBGAux)
                seen = trace if whole else _head_only(trace, network)
                told = {"defense": setup.defenses} if setup.defenses and name == OURS else {}
                guess = attack(seen.view(CURIOUS_SERVER, knowledge={**known, **told}), seed=run.seed)
                assert isinstance(guess, LabelCounts)
                found[name] = guess
        except NotApplicable as reason:
            if index == number - 1 and not truths:
                raise
            log.warning("batch %d of %d is left out: %s", index + 1, number, reason)
            continue
        for name, guess in found.items():
            counts.setdefault(name, []).append(guess.counts)
        truths.append(true_counts(found[OURS], trace.truth()))
    return {name: torch.cat(each) for name, each in counts.items()}, torch.cat(truths)


def reconstructed(
    setup: Setup, attack: Attack, number: int, run: Run, pixels: tuple[Tensor, Tensor]
) -> tuple[Inputs, Truth]:
    """What the attack makes of `number` batches, each with its network, and what they were, both in [0, 1]."""
    mean, deviation = pixels
    shares = setup.partition.split(setup.victims, number, generator(run.seed, "batches", setup.batch))
    of, samples, certified, labels, answered = [], [], [], [], []
    facts: dict[tuple[Origin, str], Tensor] = {}
    for index, share in enumerate(shares):
        network, batch = setup.network(index), setup.victims.take(share)
        trace = record_update(network, setup, batch, run, "fedsgd")
        known = {"architecture": partial(_evaluated_on, network, run.device), "unlabelled_aux": setup.auxiliary.x}
        guess = attack(trace.view(CURIOUS_SERVER, knowledge=known), seed=run.seed)
        assert isinstance(guess, Inputs)
        assert guess.labels is not None
        origin = Origin(index, "client:0")
        of.append(origin)
        samples.append((guess.samples[0].reshape(-1, *batch.x.shape[1:]) * deviation + mean).clamp(0, 1))
        certified.append(guess.certified[0])
        labels.append(guess.labels[0])
        answered.append(bool(guess.answered[0]))
        facts[origin, "inputs"] = (batch.x * deviation + mean).clamp(0, 1)
        facts[origin, "input_labels"] = batch.y
        facts[origin, "label_counts"] = torch.bincount(batch.y, minlength=len(setup.dataset.classes))
    held = Examples((setup.victims.x * deviation + mean).clamp(0, 1), setup.victims.y)
    return Inputs(of, samples, certified, torch.tensor(answered), labels), Truth(facts, [held])


def rows_of_inputs(
    guess: Inputs, truth: Truth, name: str, by: By, printed: Mapping[str, float], note: str
) -> Iterator[Row]:
    """A row for each of the paper's five scores."""
    assert guess.labels is not None
    classes = len(truth.get(guess.of[0], "label_counts"))
    counts = torch.stack([torch.bincount(own[own >= 0], minlength=classes) for own in guess.labels])
    asr = LabelSuccess().score(LabelCounts(guess.of, counts), truth)
    cell = {"attack": f"inverting-gradients, labels by {name}" if by == "paper" else "inputs"}
    judged = verdict(asr, printed.get("asr"), tolerance=5.0, unit=100)
    yield _row({**cell, "score": "asr"}, by, printed.get("asr"), asr, judged, note)
    wanted: dict[str, tuple[Metric, float]] = {
        "psnr": (InputsPsnr(), 2.0),
        "ssim": (InputsSsim(), 0.1),
        "mse": (InputsMse(), 0.01),
        "lpips": (InputsLpips(), 0.05),
    }
    for word, (metric, tolerance) in wanted.items():
        found, figure = metric.score(guess, truth), printed.get(word)
        at = {**cell, "score": word}
        if found.status != "ok":
            yield not_runnable(at, by, metric.title, figure, found.why)
            continue
        better = metric.perfect > found.chance
        judged = verdict(found, figure, tolerance=tolerance, higher_is_better=better)
        numbers = (found.value, found.low, found.high, found.n, found.chance)
        yield Row(at, by, metric.title, figure, *numbers, judged, note)


def record_update(network: nn.Module, setup: Setup, batch: Examples, run: Run, algorithm: str) -> MemoryTrace:
    """One client, one round: what the server sends, and what comes back."""
    head, classes = last_linear(network), len(setup.dataset.classes)
    if algorithm == "fedsgd":
        training = LocalTraining(algorithm="fedsgd", batch_size=setup.batch, batch_norm="eval")
    else:
        training = LocalTraining(lr=setup.lr, batch_size=-(-setup.batch // LOCAL_STEPS), batch_norm="eval")
    protocol = {
        "classes": classes,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": 1,
        "optimizer": "sgd",
    }
    trace = MemoryTrace(protocol, Keep(kinds=frozenset({"model", "update", "gradient"})))
    settings = Settings(rounds=1, training=training, defenses=setup.defenses)
    Horizontal(network, [batch], settings, run.seed, classes, trace, run.device).run()
    return trace


def _head_only(trace: MemoryTrace, network: nn.Module) -> MemoryTrace:
    """The same trace without the layers that most attacks never read: large models are slow to copy."""
    head = last_linear(network)
    wanted = {head.weight, head.bias}
    short = [
        Message(
            message.round,
            message.sender,
            message.receiver,
            message.kind,
            {name: tensor for name, tensor in message.tensors.items() if name in wanted},
            message.info,
        )
        for message in trace.messages()
    ]
    return MemoryTrace.of(short, trace.protocol)


def _evaluated_on(network: nn.Module, device: str) -> nn.Module:
    return copy.deepcopy(network).to(device)


def _counts_alone(size: int, cap: int, classes: int, run: Run) -> tuple[Tensor, Tensor]:
    """EBI's counts and the true ones for ideal gradients: every probability is 1/classes, `cap` images a class."""
    pool = Examples(torch.zeros(classes * cap, 1), torch.arange(classes).repeat_interleave(cap))
    partition = HalfQuarterRest(batch=size, shortage="cap")
    per_step = -(-size // LOCAL_STEPS)
    biases, truths = [], []
    for share in partition.split(pool, 100, generator(run.seed, "counts alone", size, cap)):
        steps = torch.split(pool.y[share], per_step)
        per_class = [torch.bincount(step, minlength=classes).double() / len(step) for step in steps]
        biases.append(len(steps) / classes - torch.stack(per_class).sum(0))
        truths.append(torch.bincount(pool.y[share], minlength=classes))
    return ebi_counts(torch.stack(biases), torch.full((100,), size)), torch.stack(truths)


# What nobody who reads a noised update can beat. Both readers are given every image, every label of the two large
# classes, and a gradient that was not clipped; only the 32 labels of the rest are asked for. The first one's images
# push alike, so that counts are all there is to read. The second is also told for each sample the one other class that
# it might have, which has twice the energy of what parts a class from nothing; only samples of one class push alike.
BOUNDS = {"bound: told all but 32 labels": 1.0, "bound: told each one's only alternative": 2.0}
REST = 32  # of 128 samples: what half and a quarter leave
DRAWS = 2000


def push_energy(network: nn.Module, x: Tensor) -> float:
    """Mean over images of the squared norm of one logit's gradient by all parameters; the last bias has 1 of it."""
    network.eval()
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    energies = []
    for index, one in enumerate(x.to(parameters[0].device)):
        logits = network(one[None])[0]
        gradients = torch.autograd.grad(logits[index % len(logits)], parameters)
        energies.append(sum(float(gradient.square().sum()) for gradient in gradients))
    return sum(energies) / len(energies)


def _told_the_rest(sigma: float, energy: float, classes: int, run: Run) -> tuple[Tensor, Tensor]:
    """Counts of the best guess, and the true ones (draws, classes), if everything but the rest's labels were known."""
    rng = generator(run.seed, "told the rest")
    real = torch.zeros(DRAWS, classes, dtype=torch.int64)
    real.scatter_add_(1, torch.randint(classes, (DRAWS, REST), generator=rng), torch.ones(DRAWS, REST).long())
    noise = sigma * (LOCAL_STEPS / energy) ** 0.5 * -(-128 // LOCAL_STEPS)  # in samples
    seen = real + noise * torch.randn(real.shape, generator=rng)
    counts = torch.arange(REST + 1.0)
    prior = torch.distributions.Binomial(REST, torch.tensor(1 / classes)).log_prob(counts)
    likely = (prior - 0.5 * ((seen[..., None] - counts) / noise).square()).softmax(2)
    tails = likely.flip(2).cumsum(2).flip(2)[..., 1:].flatten(1)  # P(count >= k) for k from 1 on
    taken = torch.zeros_like(tails).scatter_(1, tails.topk(REST, 1).indices, 1)
    guess = taken.reshape(DRAWS, classes, REST).sum(2).long()
    for label, size in enumerate((64, 32)):  # which classes they are makes no difference
        guess[:, label] += size
        real[:, label] += size
    return guess, real


def score(counts: Tensor, real: Tensor) -> Score:
    """Attack success rate of counts (batches, classes) against the real ones."""
    origins = [Origin(index, "client:0") for index in range(len(real))]
    truth = Truth({(origin, "label_counts"): row for origin, row in zip(origins, real, strict=True)})
    return LabelSuccess().score(LabelCounts(origins, counts), truth)


def rows_of(results: list[Result], cell: Mapping[str, Any], printed: Mapping[str, float], note: str) -> Iterator[Row]:
    """A row per algorithm; ours and the baselines are held against the best printed figure of the cell."""
    best = max(printed.values()) if printed else None
    for result in results:
        figure = printed.get(result.attack, best)
        against = "" if result.attack in printed or best is None else "Printed: the paper's best attack. "
        judged = verdict(result.score, figure, tolerance=TOLERANCE, unit=100)
        yield _row({**cell, "attack": result.attack}, result.by, figure, result.score, judged, against + note)


def _row(cell: Mapping[str, Any], by: By, figure: float | None, found: Score, judged: Any, note: str) -> Row:
    value, low, high, chance = (100 * x for x in (found.value, found.low, found.high, found.chance))
    return Row(cell, by, METRIC, figure, value, low, high, found.n, chance, judged, note)
