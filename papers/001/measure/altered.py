"""Gradients that parties alter before they send them: what is left to the attack, and what becomes of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.dataset import Dataset
from fedspill.defense import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.defenses.fake_gradients import FakeGradients
from fedspill.defenses.quantization import Quantization
from fedspill.federation.local import accuracy
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
from fedspill.models.cafe_towers import CafeTowers
from fedspill.reproduce import By, Row, Run
from fedspill.seeds import seed_of
from fedspill.training import LocalTraining, loss_of

from .cells import Cell
from .federation import Setup, stock

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


def federation_of(defenses: tuple[Defense, ...], rounds: str) -> Setup:
    """200 samples of Fashion-MNIST in 30 chosen rounds, or in twice as many random ones as samples."""
    setup = Setup(
        "fashion-mnist",
        samples=200,
        batch=20,
        rounds=30,
        defenses=defenses,
        effort=InversionEffort(retry_blurs=(), plain=40),
    )
    return setup if rounds == "chosen" else replace(setup, batches="random", rounds=400, whole=400)


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
