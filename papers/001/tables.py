"""Tables of paper 001 (Jin et al., CAFE, NeurIPS 2021) as runnable checks: vertical federations on real images.

Every figure is the mean PSNR of tiles as the authors compute it, but over all samples and with a cap of 120 dB, so that
black tiles do not count as infinitely good. "ours" is `cafe` on 60 chosen rounds; "as published" is Algorithm 4 with
the released constants on random batches of a model that stands still.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attacks.cafe.graphs import recorded
from fedspill.attacks.cafe.invert import Effort
from fedspill.attacks.cafe.observed import Observed, observe
from fedspill.attacks.cafe.published import STEPS, Constants, Published
from fedspill.attacks.cafe_exact import Recovered, recover, recover_faked, recover_moving, vouched
from fedspill.attacks.inversion.gradients import gradients_of
from fedspill.attacks.inversion.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.attacks.inversion.search import Recipe, one_hot, reconstruct
from fedspill.data.base import Dataset, DataSource, Examples
from fedspill.data.cifar10 import Cifar10
from fedspill.data.fashion_mnist import FashionMnist
from fedspill.data.mnist import Mnist
from fedspill.data.yale import Yale
from fedspill.defenses.base import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.fake_gradients import FakeGradients
from fedspill.defenses.quantization import Quantization
from fedspill.errors import DataMissing
from fedspill.federation.batches import Batching, plan_batches
from fedspill.federation.local import LocalTraining, accuracy, loss_of
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.messages import Message
from fedspill.metrics.base import Score, mean_interval
from fedspill.metrics.tiles import tile_psnr
from fedspill.models.cafe_towers import CafeTowers
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.reproduce import By, Row, Run, Table, not_runnable, published, verdict
from fedspill.seeds import generator, seed_of
from fedspill.threat import VERTICAL_SERVER
from fedspill.trace import Event, MemoryTrace, Origin, Recorder

METRIC = "PSNR of tiles, dB"
TOLERANCE = 2.0  # dB
SOURCES: dict[str, DataSource] = {
    "mnist": Mnist(),
    "fashion-mnist": FashionMnist(),
    "cifar10": Cifar10(),
    "yale": Yale(extended=True),
}
LINNAEUS = "Linnaeus 5 is not on this machine; with it as class folders, use the data set `image-folder`."


@dataclass(frozen=True)
class Setup:
    """One vertical federation and how it is attacked."""

    data: str
    samples: int = 800
    batch: int = 40
    parties: int = 4
    widths: tuple[int, int, int] = (256, 64, 10)
    batches: Batching = "anti-twins"
    rounds: int = 60
    whole: int = 10**9  # rounds of which the weight gradients are recorded; the rest shows biases alone
    training: LocalTraining | None = None  # None: the model stands still
    defenses: tuple[Defense, ...] = ()
    knows_fakes: int = 0  # iterations spent on undoing fake gradients
    effort: Effort = field(default_factory=Effort)

    def at(self, scale: str) -> Setup:
        """A small version for a first look: an eighth of the samples in batches of half the size."""
        if scale == "full":
            return self
        samples, batch = min(self.samples, 100), max(5, min(self.batch // 2, 25))
        rounds = 3 * -(-samples // batch) if self.rounds < self.samples else samples + 20
        return replace(self, samples=samples, batch=batch, rounds=rounds, effort=replace(self.effort, again=(3e-2,)))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one federation: PSNR of tiles (n, parties) and of whole images (n,), and what was observed."""

    tiles: Tensor
    images: Tensor
    labels: float
    found: Recovered
    rounds: int
    seconds: float
    chance: float
    compensated: str = ""  # of a model that moved: what it was before

    def score(self) -> Score:
        values = self.tiles.mean(1)
        low, high = mean_interval(values)
        return Score(float(values.mean()), low, high, len(values), self.chance)

    def note(self) -> str:
        """The rest of what must be known, in one line."""
        poor = self.tiles < 30
        unsure = ~vouched(self.found).cpu()
        flagged = int((poor & unsure).sum())
        return (
            f"{self.rounds} rounds; whole images: median {float(self.images.median()):.1f}, worst "
            f"{float(self.images.min()):.1f} dB, {100 * float((self.images > 30).double().mean()):.1f} % above 30 dB; "
            f"MSE {float((10 ** (-self.images / 10)).mean()):.1e}; labels {100 * self.labels:.1f} %; "
            f"tiles below 30 dB: {int(poor.sum())}, flagged {flagged}; tiles not in the gradients: "
            f"{int((~torch.isfinite(self.found.misfit)).sum())}; {self.seconds:.1f} s{self.compensated}"
        )


def load(name: str, run: Run) -> tuple[Dataset | None, str]:
    if name not in SOURCES:
        return None, LINNAEUS
    try:
        return SOURCES[name].load(run.data_dir), ""
    except DataMissing as error:
        return None, str(error)


def stock(dataset: Dataset, setup: Setup, run: Run) -> tuple[Examples, Callable[[], VerticalNet]]:
    """The samples of a federation, and its freshly initialised network."""
    order = torch.randperm(len(dataset.train), generator=generator(run.seed, "samples"))[: setup.samples]
    spec = CafeTowers(parties=setup.parties, widths=setup.widths)
    build = partial(spec.build, dataset.shape, len(dataset.classes), seed=seed_of(run.seed, "network"))
    return dataset.train.take(order), lambda: vertical_net(build())


class Thin(Recorder):
    """Keeps of every gradient the first layer's alone, and its weights only in the first rounds."""

    def __init__(self, trace: MemoryTrace, whole: int) -> None:
        self._trace = trace
        self._whole = whole

    def say(self, message: Message) -> None:
        if message.kind == "gradient":
            ends = (".first.bias", ".first.weight") if message.round < self._whole else (".first.bias",)
            message = replace(message, tensors={n: t for n, t in message.tensors.items() if n.endswith(ends)})
        self._trace.say(message)

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        self._trace.note_truth(origin, name, value)

    def note_event(self, event: Event) -> None:
        self._trace.note_event(event)

    def end_round(self, number: int) -> None: ...

    def finish(self) -> None: ...


def observed(dataset: Dataset, setup: Setup, run: Run) -> tuple[Observed, Examples]:
    """What the server has after all rounds of the federation, and the samples behind it."""
    examples, build = stock(dataset, setup, run)
    trace = MemoryTrace({"classes": len(dataset.classes)})
    training = setup.training or LocalTraining()
    settings = VerticalSettings(
        rounds=setup.rounds,
        batches=setup.batches,
        static=setup.training is None,
        training=replace(training, batch_size=setup.batch),
        defenses=setup.defenses,
    )
    Vertical(build(), examples, settings, run.seed, Thin(trace, setup.whole), run.device).run()
    view = trace.view(VERTICAL_SERVER, knowledge={"architecture": build})
    return observe(view, run.device), examples


def attacked(dataset: Dataset, setup: Setup, run: Run) -> Outcome:
    """The federation, the attack, and what it got."""
    seen, examples = observed(dataset, setup, run)
    rng = generator(run.seed, "attack")
    _wait(run.device)
    began = time.perf_counter()
    if setup.knows_fakes:
        found = recover_faked(seen, setup.effort, rng, setup.knows_fakes)
    elif seen.static:
        found = recover(seen, setup.effort, rng)
    else:
        found = recover_moving(seen, setup.effort, rng, passes=6)
    _wait(run.device)
    seconds = time.perf_counter() - began
    return outcome(found, examples, setup, seconds)


def outcome(found: Recovered, examples: Examples, setup: Setup, seconds: float = 0.0) -> Outcome:
    x = found.x.cpu()
    errors = (x.double().clamp(0, 1) - examples.x.double()).square().flatten(1).mean(1)
    images = -10 * torch.log10(errors.clamp_min(1e-12))
    labels = float((found.labels.cpu() == examples.y).double().mean())
    tiles = tile_psnr(x, examples.x, setup.parties)
    compensated = ""
    if found.uncompensated is not None:
        before = float(tile_psnr(found.uncompensated.cpu(), examples.x, setup.parties).mean())
        compensated = f"; {found.passes} passes of compensation kept, {before:.2f} dB without"
    level = chance(examples, setup.parties)
    return Outcome(tiles, images, labels, found, setup.rounds, seconds, level, compensated)


def chance(examples: Examples, parties: int) -> float:
    """The best of grey, black and the mean of the class (of all other samples), which no access is needed for."""
    places = torch.unique(examples.y, return_inverse=True)[1]
    sums = torch.zeros(int(places.max()) + 1, *examples.x.shape[1:]).index_add_(0, places, examples.x)
    others = (torch.bincount(places)[places] - 1).clamp_min(1)[:, None, None, None]
    means = (sums[places] - examples.x) / others
    tried = (torch.full_like(examples.x, 0.5), torch.zeros_like(examples.x), means)
    return max(float(tile_psnr(guess, examples.x, parties).mean()) for guess in tried)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def row(cell: Mapping[str, Any], by: By, printed: float | None, found: Score, note: str) -> Row:
    judged = verdict(found, printed, tolerance=TOLERANCE)
    return Row(cell, by, METRIC, printed, found.value, found.low, found.high, found.n, found.chance, judged, note)


@dataclass(frozen=True)
class Cell(ABC):
    """One cell of a table: what is done on which data, and what the paper printed for it."""

    by: ClassVar[By] = "fedspill"
    metric: ClassVar[str] = METRIC

    data: str
    cell: Mapping[str, Any]
    printed: float | None = None

    @abstractmethod
    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]: ...


def results(cells: Sequence[Cell], run: Run) -> Iterator[Row]:
    """The rows of all cells whose data are there, and why there is none of the others; descents run side by side."""
    waiting: list[tuple[Planned, Dataset]] = []
    for one in cells:
        dataset, why_not = load(one.data, run)
        if dataset is None:
            yield not_runnable({"data": one.data, **one.cell}, one.by, one.metric, one.printed, why_not)
        elif isinstance(one, Planned):
            waiting.append((one, dataset))
        else:
            yield from one.rows(dataset, run)
    yield from descents(waiting, run)


class CellTable(Table):
    """A table that says what its cells are before any of them is run."""

    @abstractmethod
    def cells(self) -> list[Cell]: ...

    def rows(self, run: Run) -> Iterator[Row]:
        yield from results(self.cells(), run)


@final
@dataclass(frozen=True)
class Attempt(Cell):
    """`cafe` on one federation."""

    setup: Setup = field(default_factory=lambda: Setup("mnist"))

    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]:
        result = attacked(dataset, self.setup.at(run.scale), run)
        cell = {"data": self.data, **self.cell, "by": "cafe"}
        yield row(cell, self.by, self.printed, result.score(), result.note())


def attempt(cell: Mapping[str, Any], printed: float | None, setup: Setup) -> Attempt:
    return Attempt(setup.data, cell, printed, setup)


@dataclass(frozen=True)
class StateOfTheArt(CellTable):
    """Table 2: CAFE against gradient matching, M = 4, K = 40."""

    name: ClassVar[str] = "001/2"
    title: ClassVar[str] = "All samples of a vertical federation, against gradient matching"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        printed = published(self.paper, "2")
        found: list[Cell] = [
            attempt({"rounds": "chosen"}, printed.get(name, {}).get("cafe"), Setup(name))
            for name in (*SOURCES, "linnaeus5")
        ]
        for name in ("mnist", "fashion-mnist"):
            setup = Setup(name, batches="random", rounds=1000, whole=120)
            found.append(attempt({"rounds": "random"}, printed.get(name, {}).get("cafe"), setup))
        for name in ("mnist", "cifar10", "linnaeus5"):
            found += [Matching(name, {"by": method}, printed[name].get(method), method) for method in COMPETITORS]
        return found


COMPETITORS = ("dlg", "cosine", "sapag", "bn", "gc")


@final
@dataclass(frozen=True)
class Matching(Cell):
    """A competitor on one batch, with all gradients of the joint model and the true labels at hand."""

    by: ClassVar[By] = "baseline"

    method: str = "dlg"
    steps: int = 1000

    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]:
        steps = self.steps if run.scale == "full" else 20
        setup = Setup(self.data).at(run.scale)
        examples, build = stock(dataset, setup, run)
        batch = examples.take(torch.arange(setup.batch))
        net = build().to(run.device)
        own = batch.to(run.device)
        loss = loss_of(net(own.x), own.y)
        sent = list(torch.autograd.grad(loss, list(net.parameters())))
        recipes: dict[str, Recipe] = {
            "dlg": dlg(steps),
            "cosine": inverting_gradients(steps, 0.1, signed=False),
            "sapag": sapag(steps),
            "bn": grad_inversion(net, steps, group=1),
            "gc": grad_inversion(net, steps, group=5, batch_norm=False),
        }
        classes = len(dataset.classes)
        found = reconstruct(
            recipes[self.method],
            gradients_of(net),
            sent,
            tuple(own.x.shape),
            classes,
            rng=generator(run.seed, self.method),
            targets=one_hot(own.y, classes).float(),
        )
        x = found.x[found.best].reshape(own.x.shape).detach().cpu()
        values = tile_psnr(x, batch.x, setup.parties).mean(1)
        low, high = mean_interval(values)
        score = Score(float(values.mean()), low, high, len(values), chance(examples, setup.parties))
        why = "no batch norm in this network: its other terms alone" if self.method == "bn" else "labels given"
        note = f"{steps} steps on one batch; {why}"
        yield row({"data": self.data, **self.cell}, self.by, self.printed, score, note)


@dataclass(frozen=True)
class BatchSizes(CellTable):
    """Table 3: K from 10 to 100 at N = 800, as many chosen rounds as separate all samples."""

    name: ClassVar[str] = "001/3"
    title: ClassVar[str] = "All samples by batch size"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        found: list[Cell] = []
        for name, figures in published(self.paper, "3").items():
            for size, printed in ((int(size), figure) for size, figure in figures.items()):
                setup = Setup(name, batch=size, rounds=(4 if size == 100 else 3) * (800 // size))
                found.append(attempt({"batch": size}, printed, setup))
        return found


@final
@dataclass(frozen=True)
class Planned(Cell):
    """One run of Algorithm 3 or 4; the printed figure is that of its end."""

    by: ClassVar[By] = "paper"

    constants: Constants = field(default_factory=Constants)
    stages: tuple[tuple[int, tuple[int, ...]], ...] = ((8000, STEPS),)  # rounds, and the steps done in each
    training: float = 0.0  # learning rate of Adam, 0: the model stands still

    @property
    def total(self) -> int:
        return sum(rounds for rounds, _ in self.stages)

    def at(self, scale: str) -> Planned:
        if scale == "full":
            return self
        return replace(self, stages=tuple((max(20, rounds // 200), steps) for rounds, steps in self.stages))

    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]:
        yield from descents([(self, dataset)], run)


@final
class Descent:
    """Algorithm 3 or 4 on a live federation: a round is drawn, answered and used, nothing is kept."""

    def __init__(self, dataset: Dataset, setup: Setup, run: Run, planned: Planned) -> None:
        self.planned, self.setup, self.dataset = planned, setup, dataset
        self.examples, build = stock(dataset, setup, run)
        device = run.device
        self.net, self._own = build().to(device), self.examples.to(device)
        rng = generator(run.seed, "descent")
        self.state = Published(self.net, len(self.examples), len(dataset.classes), rng, planned.constants)
        drawn = plan_batches("random", len(self.examples), setup.batch, planned.total, rng)
        self._plan = torch.stack(drawn).to(device)
        self._optimizer = torch.optim.Adam(
            self.net.parameters(), planned.training or 1.0, capturable=device.startswith("cuda")
        )
        self._place, self._number = (
            torch.zeros((), device=device, dtype=kind) for kind in (torch.int64, torch.float32)
        )  # of the batch in the plan, and of the round in its stage
        self._device = device
        self._stream = torch.cuda.Stream() if device.startswith("cuda") else None  # type: ignore[no-untyped-call]
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        self._play: Callable[[], None] = lambda: None
        self.done = 0

    def forward(self, rounds: int) -> None:
        """So many rounds more. On a GPU they are only asked for, in a stream that runs beside those of others."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            for _ in range(min(rounds, self.planned.total - self.done)):
                begun = 0
                for length, steps in self.planned.stages:
                    if self.done == begun:  # a stage begins
                        self._number.zero_()
                        kept = [self._place, self._number, *self.state.tensors()]
                        self._play = _recorded(partial(self._round, steps), self._device, kept)
                    begun += length
                self._play()
                self.done += 1

    def tiles(self) -> Tensor:
        """PSNR of tiles (n, parties) as it is now."""
        if self._stream:
            self._stream.synchronize()
        x = self.net.parts.join([part.clamp(0, 1) for part in self.state.x]).detach().cpu()
        return tile_psnr(x, self.examples.x, self.setup.parties)

    def row(self, level: float, run: Run) -> Row:
        values = self.tiles().mean(1)
        low, high = mean_interval(values)
        score = Score(float(values.mean()), low, high, len(values), level)
        right = float((self.state.logits.argmax(1).cpu() == self.examples.y).double().mean())
        note = f"labels {100 * right:.1f} %"
        if self.planned.training:
            test = self.dataset.test.take(torch.arange(100)).to(run.device)
            note += f"; test accuracy {100 * accuracy(self.net, test):.0f} %"
            self.net.train()
        cell = {"data": self.planned.data, **self.planned.cell, "round": self.done, "by": "as published"}
        return row(cell, "paper", self.planned.printed if self.done == self.planned.total else None, score, note)

    def _round(self, steps: tuple[int, ...]) -> None:
        batch = self._plan.index_select(0, self._place[None])[0]
        self._place.add_(1)
        self._number.add_(1)
        names, parameters = zip(*self.net.named_parameters(), strict=True)
        loss = loss_of(self.net(self._own.x[batch]), self._own.y[batch])
        gradients = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
        self.state.step(batch, gradients, self._number, steps)
        if self.planned.training:
            for name, parameter in self.net.named_parameters():
                parameter.grad = gradients[name]
            self._optimizer.step()


def _recorded(work: Callable[[], None], device: str, kept: Sequence[Tensor]) -> Callable[[], None]:
    """On a GPU the work as one graph; what recording it did to the tensors it changes is undone."""
    if not device.startswith("cuda"):
        return work
    before = [tensor.clone() for tensor in kept]
    play = recorded(work)
    for tensor, value in zip(kept, before, strict=True):
        tensor.copy_(value)
    return play


def descents(planned: Sequence[tuple[Planned, Dataset]], run: Run, every: int = 2000, few: int = 50) -> Iterator[Row]:
    """All of them side by side, as curves: a row each so many rounds, the last held against the printed figure."""
    running: list[tuple[Descent, float]] = []
    for one, dataset in planned:
        setup = replace(Setup(one.data), batches="random").at(run.scale)
        descent = Descent(dataset, setup, run, one.at(run.scale))
        running.append((descent, chance(descent.examples, setup.parties)))
    every = every if run.scale == "full" else 20
    few = min(every, few)  # at a time: a GPU takes only so many in a stream
    while running:
        for _ in range(0, every, few):
            for descent, _ in running:
                descent.forward(few)
        for descent, level in running:
            yield descent.row(level, run)
        running = [(descent, level) for descent, level in running if descent.done < descent.planned.total]


@dataclass(frozen=True)
class Regularizers(CellTable):
    """Table 4: what each term of Step III is worth to the published algorithm."""

    name: ClassVar[str] = "001/4"
    title: ClassVar[str] = "Terms of the published objective"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        variants = {
            "all terms": Constants(),
            "alpha = 0": Constants(alpha=0),
            "xi = 0": Constants(xi=0),
            "beta = 0": Constants(beta=0),
            "gamma = 0": Constants(gamma=0),
        }
        return [
            Planned(name, {"terms": variant}, figures[variant], constants)
            for name, figures in published(self.paper, "4").items()
            for variant, constants in variants.items()
        ]


@dataclass(frozen=True)
class Loops(CellTable):
    """Table 5: single loop against nested loops; printed are rounds to 27 (CIFAR-10) and 38 dB (MNIST)."""

    name: ClassVar[str] = "001/5"
    title: ClassVar[str] = "Nested loops against a single loop, as published"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        loops = {"single": ((20000, STEPS),), "nested": ((8000, (1,)), (8000, (2,)), (4000, (3,)))}
        return [
            Planned(name, {"loop": loop}, stages=stages)
            for name in ("mnist", "cifar10")
            for loop, stages in loops.items()
        ]


@dataclass(frozen=True)
class Workers(CellTable):
    """Table 6: 4 and 16 parties."""

    name: ClassVar[str] = "001/6"
    title: ClassVar[str] = "All samples by number of parties"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        return [
            attempt({"parties": int(parties)}, printed, Setup(name, parties=int(parties)))
            for name, figures in published(self.paper, "6").items()
            for parties, printed in figures.items()
        ]


@dataclass(frozen=True)
class WhileTraining(CellTable):
    """Table 7: the model is trained meanwhile; the paper does not name its optimizer."""

    name: ClassVar[str] = "001/7"
    title: ClassVar[str] = "Attack while the model is trained"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        printed = published(self.paper, "7")
        found: list[Cell] = []
        for name in ("mnist", "fashion-mnist", "cifar10"):
            for optimizer, lr in (
                ("sgd", 1e-2), ("adam", 1e-6), ("sgd", 1e-3), ("sgd", 5e-4), ("sgd", 1e-4),
                ("sgd", 1e-1), ("adam", 1e-5), ("adam", 1e-4),
            ):  # fmt: skip
                training = LocalTraining(optimizer=optimizer, lr=lr)  # type: ignore[arg-type]
                setup = Setup(name, training=training, effort=Effort(again=()))
                figure = printed.get(name, {}).get(f"{lr:g}") if optimizer == "sgd" else None
                found.append(attempt({"optimizer": optimizer, "lr": lr}, figure, setup))
        return found


@dataclass(frozen=True)
class TrainingWhileAttacked(CellTable):
    """Table 8: the published attack on MNIST while Adam at 1e-6 trains the model."""

    name: ClassVar[str] = "001/8"
    title: ClassVar[str] = "The published attack while the model is trained, by round"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        printed = published(self.paper, "8")["20000"]
        return [Planned("mnist", {"adam": 1e-6}, printed, stages=((20000, STEPS),), training=1e-6)]


@dataclass(frozen=True)
class Defenses(CellTable):
    """Section 4.4: fake gradients and other alterations, against attackers who do and do not know of them."""

    name: ClassVar[str] = "001/defenses"
    title: ClassVar[str] = "Fake gradients, noise, rounding and sparsity on vertical gradients"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        printed = published(self.paper, "defenses")
        found: list[Cell] = [
            attempt({"defense": label, "rounds": rounds}, None, altered(defenses, rounds))
            for label, defenses in ALTERATIONS.items()
            for rounds in ("chosen", "random")
        ]
        for label, defenses in FAKES.items():
            setup, cell = altered(defenses, "chosen"), {"defense": label, "rounds": "chosen"}
            found.append(attempt({**cell, "attacker": "does not know"}, printed.get(label), setup))
            found.append(attempt({**cell, "attacker": "knows"}, None, replace(setup, knows_fakes=600)))
        return found


ALTERATIONS: dict[str, tuple[Defense, ...]] = {
    "none": (),
    "fp16": (Quantization(type="fp16"),),
    "bf16": (Quantization(type="bf16"),),
    "int8": (Quantization(type="int8"),),
    "top 10 %": (Compression(drop=0.9),),
    "noise 1e-5": (ClipNoise(clip=None, sigma=1e-5),),
    "noise 1e-4": (ClipNoise(clip=None, sigma=1e-4),),
    "noise 1e-3": (ClipNoise(clip=None, sigma=1e-3),),
    "clip 0.01": (ClipNoise(clip=0.01, sigma=0.0),),
    "dp-sgd 0.01, clip alone": (DpSgd(clip=0.01, noise_multiplier=0.0, sampling="shuffle"),),
    "dp-sgd 0.01, noise 0.001": (DpSgd(clip=0.01, noise_multiplier=1e-3, sampling="shuffle"),),
    "dp-sgd 0.01, noise 0.01": (DpSgd(clip=0.01, noise_multiplier=1e-2, sampling="shuffle"),),
    "dp-sgd 0.01, noise 0.1": (DpSgd(clip=0.01, noise_multiplier=0.1, sampling="shuffle"),),
}
FAKES: dict[str, tuple[Defense, ...]] = {
    "fake, ranks": (FakeGradients(candidates=1),),
    "fake, clamped": (FakeGradients(reading="clamped", candidates=1),),
    "noise 1e-5, then fake": (ClipNoise(clip=None, sigma=1e-5), FakeGradients(candidates=1)),
    "noise 1e-4, then fake": (ClipNoise(clip=None, sigma=1e-4), FakeGradients(candidates=1)),
    "noise 3e-4, then fake": (ClipNoise(clip=None, sigma=3e-4), FakeGradients(candidates=1)),
    "top 10 %, then fake": (Compression(drop=0.9), FakeGradients(candidates=1)),
}


def altered(defenses: tuple[Defense, ...], rounds: str) -> Setup:
    setup = Setup(
        "fashion-mnist", samples=200, batch=20, rounds=30, defenses=defenses, effort=Effort(again=(), plain=40)
    )
    return setup if rounds == "chosen" else replace(setup, batches="random", rounds=400, whole=400)


@dataclass(frozen=True)
class FakeTraining(CellTable):
    """Figure 7's data: training with true and with fake gradients; accuracy on held-out samples."""

    name: ClassVar[str] = "001/figure7"
    title: ClassVar[str] = "Training with true and fake gradients"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Cell]:
        as_printed = (FakeGradients(candidates=1, scaled=False),)
        every = {"true": (), "fake, ranks, as printed": as_printed, **FAKES}
        return [
            Trained(name, {"gradients": label}, None, defenses)
            for name in ("mnist", "cifar10")
            for label, defenses in every.items()
        ]


@final
@dataclass(frozen=True)
class Trained(Cell):
    """A network trained on 2,000 samples with gradients so altered, and how often it is right on others."""

    by: ClassVar[By] = "baseline"
    metric: ClassVar[str] = "test accuracy, percent"

    defenses: tuple[Defense, ...] = ()
    rounds: int = 400

    def rows(self, dataset: Dataset, run: Run) -> Iterator[Row]:
        rounds = self.rounds if run.scale == "full" else 20
        examples, _ = stock(dataset, Setup(self.data, samples=2000), run)
        spec = CafeTowers(double_softmax=False)
        net = spec.build(dataset.shape, len(dataset.classes), seed=seed_of(run.seed, "network"))
        training = LocalTraining(optimizer="sgd", lr=0.1, batch_size=40)
        settings = VerticalSettings(rounds=rounds, batches="epochs", training=training, defenses=self.defenses)
        federation = Vertical(net, examples, settings, run.seed, device=run.device)
        federation.run()
        test = dataset.test.take(torch.arange(min(1000, len(dataset.test))))
        right = accuracy(federation.model, test.to(run.device))
        with torch.no_grad():
            own = examples.to(run.device)
            loss = float(loss_of(federation.model(own.x[:800]), own.y[:800]))
        half = 1.96 * (right * (1 - right) / len(test)) ** 0.5
        note = f"training loss {loss:.3f} after {rounds} rounds of SGD 0.1"
        value, spread = 100 * right, 100 * half
        yield Row(
            {"data": self.data, **self.cell}, self.by, self.metric, None, value, value - spread, value + spread,
            len(test), 10.0, "not runnable", note,
        )  # fmt: skip
