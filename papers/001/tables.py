"""Tables of paper 001 (Jin et al., CAFE, NeurIPS 2021) as runnable checks: vertical federations on real images.

Every figure is the mean PSNR of tiles as the authors compute it, but over all samples and with a cap of 120 dB, so that
black tiles do not count as infinitely good. "ours" is `cafe` on 60 chosen rounds; "as published" is Algorithm 4 with
the released constants on random batches of a model that stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

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
            f"{int((~torch.isfinite(self.found.misfit)).sum())}; {self.seconds:.1f} s"
        )


def load(name: str, run: Run) -> tuple[Dataset | None, str]:
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
    return Outcome(tiles, images, labels, found, setup.rounds, seconds, chance(examples, setup.parties))


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


def ours(cell: Mapping[str, Any], setup: Setup, printed: float | None, run: Run) -> Iterator[Row]:
    dataset, why_not = load(setup.data, run)
    if dataset is None:
        yield not_runnable({"data": setup.data, **cell}, "fedspill", METRIC, printed, why_not)
        return
    setup = setup.at(run.scale)
    result = attacked(dataset, setup, run)
    yield row({"data": setup.data, **cell, "by": "cafe"}, "fedspill", printed, result.score(), result.note())


@dataclass(frozen=True)
class StateOfTheArt(Table):
    """Table 2: CAFE against gradient matching, M = 4, K = 40."""

    name: ClassVar[str] = "001/2"
    title: ClassVar[str] = "All samples of a vertical federation, against gradient matching"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "2")
        for name in SOURCES:
            figures = printed.get(name, {})
            yield from ours({"rounds": "chosen"}, Setup(name), figures.get("cafe"), run)
        for name in ("mnist", "fashion-mnist"):
            setup = Setup(name, batches="random", rounds=1000, whole=120)
            yield from ours({"rounds": "random"}, setup, printed.get(name, {}).get("cafe"), run)
        for name in ("mnist", "cifar10"):
            yield from matching(name, printed[name], run)
        for method, figure in printed["linnaeus5"].items():
            yield not_runnable({"data": "linnaeus5", "by": method}, "paper", METRIC, figure, LINNAEUS)


def matching(name: str, figures: Mapping[str, float], run: Run, steps: int = 1000) -> Iterator[Row]:
    """The five competitors on one batch, with all gradients of the joint model and the true labels at hand."""
    dataset, why_not = load(name, run)
    steps = steps if run.scale == "full" else 20
    for method in ("dlg", "cosine", "sapag", "bn", "gc"):
        cell = {"data": name, "by": method}
        if dataset is None:
            yield not_runnable(cell, "paper", METRIC, figures.get(method), why_not)
            continue
        setup = Setup(name).at(run.scale)
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
        targets = one_hot(own.y, len(dataset.classes)).float()
        rng = generator(run.seed, method)
        found = reconstruct(
            recipes[method], gradients_of(net), sent, tuple(own.x.shape), len(dataset.classes), rng=rng, targets=targets
        )
        x = found.x[found.best].reshape(own.x.shape).detach().cpu()
        values = tile_psnr(x, batch.x, setup.parties).mean(1)
        low, high = mean_interval(values)
        score = Score(float(values.mean()), low, high, len(values), chance(examples, setup.parties))
        why = "no batch norm in this network: its other terms alone" if method == "bn" else "labels given"
        yield row(cell, "baseline", figures.get(method), score, f"{steps} steps on one batch; {why}")


@dataclass(frozen=True)
class BatchSizes(Table):
    """Table 3: K from 10 to 100 at N = 800, as many chosen rounds as separate all samples."""

    name: ClassVar[str] = "001/3"
    title: ClassVar[str] = "All samples by batch size"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        for name, figures in published(self.paper, "3").items():
            for size, printed in figures.items():
                cell = {"batch": int(size)}
                if name not in SOURCES:
                    yield not_runnable({"data": name, **cell}, "fedspill", METRIC, printed, LINNAEUS)
                    continue
                epochs = 4 if int(size) == 100 else 3
                setup = Setup(name, batch=int(size), rounds=epochs * (800 // int(size)))
                yield from ours(cell, setup, printed, run)


@dataclass(frozen=True, eq=False)
class Descent:
    """One run of Algorithm 3 or 4 on a live federation: a round is drawn, answered and used, nothing is kept."""

    dataset: Dataset
    setup: Setup
    run: Run
    constants: Constants = field(default_factory=Constants)
    stages: tuple[tuple[int, tuple[int, ...]], ...] = ((8000, STEPS),)  # rounds, and the steps done in each
    training: float = 0.0  # learning rate of Adam, 0: the model stands still

    def curve(self, every: int) -> Iterator[tuple[int, Tensor, VerticalNet, Published]]:
        """After every so many rounds: how many, PSNR of tiles (n, parties), the network and the state."""
        examples, build = stock(self.dataset, self.setup, self.run)
        device = self.run.device
        net, own = build().to(device), examples.to(device)
        rng = generator(self.run.seed, "descent")
        state = Published(net, len(examples), len(self.dataset.classes), rng, self.constants)
        total = sum(rounds for rounds, _ in self.stages)
        plan = torch.stack(plan_batches("random", len(examples), self.setup.batch, total, rng)).to(device)
        optimizer = torch.optim.Adam(net.parameters(), self.training or 1.0, capturable=device.startswith("cuda"))
        place, number = (torch.zeros((), device=device, dtype=kind) for kind in (torch.int64, torch.float32))
        names = [name for name, _ in net.named_parameters()]

        def round_(steps: tuple[int, ...]) -> None:
            batch = plan.index_select(0, place[None])[0]
            place.add_(1)
            number.add_(1)
            loss = loss_of(net(own.x[batch]), own.y[batch])
            gradients = dict(zip(names, torch.autograd.grad(loss, list(net.parameters())), strict=True))
            state.step(batch, gradients, number, steps)
            if self.training:
                for name, parameter in net.named_parameters():
                    parameter.grad = gradients[name]
                optimizer.step()

        done = 0
        for rounds, steps in self.stages:
            number.zero_()
            play = _recorded(partial(round_, steps), device, [place, number, *state.tensors()])
            for _ in range(rounds):
                play()
                done += 1
                if done % every == 0:
                    parts = [part.clamp(0, 1) for part in state.x]
                    x = net.parts.join(parts).detach().cpu()
                    yield done, tile_psnr(x, examples.x, self.setup.parties), net, state


def _recorded(work: Callable[[], None], device: str, kept: Sequence[Tensor]) -> Callable[[], None]:
    """On a GPU the work as one graph; what recording it did to the tensors it changes is undone."""
    if not device.startswith("cuda"):
        return work
    before = [tensor.clone() for tensor in kept]
    play = recorded(work)
    for tensor, value in zip(kept, before, strict=True):
        tensor.copy_(value)
    return play


def descents(
    cell: Mapping[str, Any], name: str, printed: float | None, run: Run, every: int, **how: Any
) -> Iterator[Row]:
    """Algorithm 3 or 4 as a curve: one row each so many rounds, the last one held against the printed figure."""
    dataset, why_not = load(name, run)
    if dataset is None:
        yield not_runnable({"data": name, **cell}, "paper", METRIC, printed, why_not)
        return
    setup = replace(Setup(name), batches="random").at(run.scale)
    if run.scale == "quick":
        how["stages"] = tuple((max(20, rounds // 200), steps) for rounds, steps in how.get("stages", ((8000, STEPS),)))
        every = how["stages"][0][0]
    examples, _ = stock(dataset, setup, run)
    level = chance(examples, setup.parties)
    last = sum(rounds for rounds, _ in how.get("stages", ((8000, STEPS),)))
    for done, tiles, net, state in Descent(dataset, setup, run, **how).curve(every):
        values = tiles.mean(1)
        low, high = mean_interval(values)
        score = Score(float(values.mean()), low, high, len(values), level)
        right = float((state.logits.argmax(1).cpu() == examples.y).double().mean())
        note = f"labels {100 * right:.1f} %"
        if how.get("training"):
            note += f"; test accuracy {100 * accuracy(net, dataset.test.take(torch.arange(100)).to(run.device)):.0f} %"
            net.train()
        at_end = done == last
        yield row(
            {"data": name, **cell, "round": done, "by": "as published"},
            "paper",
            printed if at_end else None,
            score,
            note,
        )


@dataclass(frozen=True)
class Regularizers(Table):
    """Table 4: what each term of Step III is worth to the published algorithm."""

    name: ClassVar[str] = "001/4"
    title: ClassVar[str] = "Terms of the published objective"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        variants = {
            "all terms": Constants(),
            "alpha = 0": Constants(alpha=0),
            "xi = 0": Constants(xi=0),
            "beta = 0": Constants(beta=0),
            "gamma = 0": Constants(gamma=0),
        }
        for name, figures in published(self.paper, "4").items():
            for variant, constants in variants.items():
                if name not in SOURCES:
                    yield not_runnable({"data": name, "terms": variant}, "paper", METRIC, figures[variant], LINNAEUS)
                    continue
                yield from descents(
                    {"terms": variant}, name, figures[variant], run, 2000, constants=constants, stages=((8000, STEPS),)
                )


@dataclass(frozen=True)
class Loops(Table):
    """Table 5: single loop against nested loops; printed are rounds to 27 (CIFAR-10) and 38 dB (MNIST)."""

    name: ClassVar[str] = "001/5"
    title: ClassVar[str] = "Nested loops against a single loop, as published"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        for name in ("mnist", "cifar10"):
            yield from descents({"loop": "single"}, name, None, run, 4000, stages=((20000, STEPS),))
            nested = ((8000, (1,)), (8000, (2,)), (4000, (3,)))
            yield from descents({"loop": "nested"}, name, None, run, 4000, stages=nested)


@dataclass(frozen=True)
class Workers(Table):
    """Table 6: 4 and 16 parties."""

    name: ClassVar[str] = "001/6"
    title: ClassVar[str] = "All samples by number of parties"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        for name, figures in published(self.paper, "6").items():
            for parties, printed in figures.items():
                cell = {"parties": int(parties)}
                if name not in SOURCES:
                    yield not_runnable({"data": name, **cell}, "fedspill", METRIC, printed, LINNAEUS)
                    continue
                yield from ours(cell, Setup(name, parties=int(parties)), printed, run)


@dataclass(frozen=True)
class WhileTraining(Table):
    """Table 7: the model is trained meanwhile; the paper does not name its optimizer."""

    name: ClassVar[str] = "001/7"
    title: ClassVar[str] = "Attack while the model is trained"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "7")
        for name in ("mnist", "fashion-mnist", "cifar10"):
            for optimizer, lr in (
                ("sgd", 1e-4), ("sgd", 5e-4), ("sgd", 1e-3), ("sgd", 1e-2), ("sgd", 1e-1),
                ("adam", 1e-6), ("adam", 1e-5), ("adam", 1e-4),
            ):  # fmt: skip
                training = LocalTraining(optimizer=optimizer, lr=lr)  # type: ignore[arg-type]
                setup = Setup(name, samples=200, batch=20, rounds=30, training=training, effort=Effort(again=()))
                figure = printed.get(name, {}).get(f"{lr:g}")
                yield from ours({"optimizer": optimizer, "lr": lr}, setup, figure, run)


@dataclass(frozen=True)
class TrainingWhileAttacked(Table):
    """Table 8: the published attack on MNIST while Adam at 1e-6 trains the model."""

    name: ClassVar[str] = "001/8"
    title: ClassVar[str] = "The published attack while the model is trained, by round"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        yield from descents(
            {"adam": 1e-6},
            "mnist",
            published(self.paper, "8")["20000"],
            run,
            2000,
            training=1e-6,
            stages=((20000, STEPS),),
        )


@dataclass(frozen=True)
class Defenses(Table):
    """Section 4.4: fake gradients and other alterations, against attackers who do and do not know of them."""

    name: ClassVar[str] = "001/defenses"
    title: ClassVar[str] = "Fake gradients, noise, rounding and sparsity on vertical gradients"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        printed = published(self.paper, "defenses")
        for label, defenses in ALTERATIONS.items():
            for rounds in ("chosen", "random"):
                yield from ours({"defense": label, "rounds": rounds}, altered(defenses, rounds), None, run)
        for label, defenses in FAKES.items():
            setup = altered(defenses, "chosen")
            cell = {"defense": label, "rounds": "chosen"}
            yield from ours({**cell, "attacker": "does not know"}, setup, printed.get(label), run)
            yield from ours({**cell, "attacker": "knows"}, replace(setup, knows_fakes=600), None, run)


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
class FakeTraining(Table):
    """Figure 7's data: training with true and with fake gradients; accuracy on held-out samples."""

    name: ClassVar[str] = "001/figure7"
    title: ClassVar[str] = "Training with true and fake gradients"
    paper: ClassVar[str] = "001"

    def rows(self, run: Run) -> Iterator[Row]:
        rounds = 2000 if run.scale == "full" else 20
        for name in ("mnist", "cifar10"):
            dataset, why_not = load(name, run)
            as_printed = (FakeGradients(candidates=1, scaled=False),)
            for label, defenses in {"true": (), "fake, ranks, as printed": as_printed, **FAKES}.items():
                cell = {"data": name, "gradients": label}
                if dataset is None:
                    yield not_runnable(cell, "baseline", "test accuracy, percent", None, why_not)
                    continue
                yield _trained_with(dataset, cell, defenses, rounds, run)


def _trained_with(
    dataset: Dataset, cell: Mapping[str, Any], defenses: tuple[Defense, ...], rounds: int, run: Run
) -> Row:
    setup = Setup(cell["data"])
    examples, _ = stock(dataset, replace(setup, samples=2000), run)
    spec = CafeTowers(double_softmax=False)
    net = spec.build(dataset.shape, len(dataset.classes), seed=seed_of(run.seed, "network"))
    training = LocalTraining(optimizer="sgd", lr=0.1, batch_size=40)
    settings = VerticalSettings(rounds=rounds, batches="epochs", training=training, defenses=defenses)
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
    return Row(
        cell, "baseline", "test accuracy, percent", None, value, value - spread, value + spread, len(test), 10.0,
        "not runnable", note,
    )  # fmt: skip
