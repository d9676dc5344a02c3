"""The vertical federations of paper 001's tables, and what their server has of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from fedspill.data.cifar10 import Cifar10
from fedspill.data.fashion_mnist import FashionMnist
from fedspill.data.mnist import Mnist
from fedspill.data.yale import Yale
from fedspill.dataset import Dataset, DataSource, Examples
from fedspill.defense import Defense
from fedspill.errors import DataMissing
from fedspill.federation.batches import Batching
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
from fedspill.leaks.inputs.vertical.server_observations import ServerObservations, observe
from fedspill.messages import Message
from fedspill.models.cafe_towers import CafeTowers
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.reproduce import Run
from fedspill.seeds import generator, seed_of
from fedspill.threat import VERTICAL_SERVER
from fedspill.trace import Event, MemoryTrace, Origin, Recorder
from fedspill.training import LocalTraining

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
    effort: InversionEffort = field(default_factory=InversionEffort)

    def at(self, scale: str) -> Setup:
        """A small version for a first look: an eighth of the samples in batches of half the size."""
        if scale == "full":
            return self
        samples, batch = min(self.samples, 100), max(5, min(self.batch // 2, 25))
        rounds = 3 * -(-samples // batch) if self.rounds < self.samples else samples + 20
        return replace(
            self, samples=samples, batch=batch, rounds=rounds, effort=replace(self.effort, retry_blurs=(3e-2,))
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


def observed(dataset: Dataset, setup: Setup, run: Run) -> tuple[ServerObservations, Examples]:
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
