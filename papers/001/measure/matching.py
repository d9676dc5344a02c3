"""What paper 001 compares itself with: gradient matching on one batch, through the reconstruction engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.dataset import Dataset
from fedspill.intervals import mean_interval
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.recipes import dlg, grad_inversion, inverting_gradients, sapag
from fedspill.leaks.inputs.search.search import Recipe, one_hot, reconstruct
from fedspill.leaks.inputs.tile_metrics import tile_psnr
from fedspill.metric import Score
from fedspill.reproduce import By, Row, Run
from fedspill.seeds import generator
from fedspill.training import loss_of

from .cells import Cell, row
from .federation import Setup, stock
from .outcome import chance

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
