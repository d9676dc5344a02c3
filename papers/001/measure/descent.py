"""Algorithms 3 and 4 of paper 001 as published, on a live federation, as curves over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.cuda_graphs import record_graph
from fedspill.dataset import Dataset
from fedspill.federation.batches import plan_batches
from fedspill.federation.local import accuracy
from fedspill.intervals import mean_interval
from fedspill.leaks.inputs.tile_metrics import tile_psnr
from fedspill.leaks.inputs.vertical.published_algorithms import STEPS, PublishedConstants, PublishedDescent
from fedspill.metric import Score
from fedspill.reproduce import By, Row, Run
from fedspill.seeds import generator
from fedspill.training import loss_of

from .cells import Cell, row
from .federation import Setup, stock
from .outcome import chance

EVERY = 2000  # rounds between two rows


@final
@dataclass(frozen=True)
class Planned(Cell):
    """One run of Algorithm 3 or 4; the printed figure is that of its end."""

    by: ClassVar[By] = "paper"

    constants: PublishedConstants = field(default_factory=PublishedConstants)
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
        """A row each so many rounds, the last held against the printed figure."""
        setup = replace(Setup(self.data), batches="random").at(run.scale)
        descent = Descent(dataset, setup, run, self.at(run.scale))
        level = chance(descent.examples, setup.parties)
        while descent.done < descent.planned.total:
            descent.forward(EVERY if run.scale == "full" else 20)
            yield descent.row(level, run)


@final
class Descent:
    """Algorithm 3 or 4 on a live federation: a round is drawn, answered and used, nothing is kept."""

    def __init__(self, dataset: Dataset, setup: Setup, run: Run, planned: Planned) -> None:
        self.planned, self.setup, self.dataset = planned, setup, dataset
        self.examples, build = stock(dataset, setup, run)
        device = run.device
        self.net, self._own = build().to(device), self.examples.to(device)
        rng = generator(run.seed, "descent")
        self.state = PublishedDescent(self.net, len(self.examples), len(dataset.classes), rng, planned.constants)
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
    play = record_graph(work)
    for tensor, value in zip(kept, before, strict=True):
        tensor.copy_(value)
    return play
