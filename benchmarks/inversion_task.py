"""The common task of the published attacks: batches of small CIFAR-10 images, each with a trained ResNet of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from inversion_stacked import Networks
from inversion_twins import by_batch, with_statistics_of
from inversion_workloads import Pictures
from torch import Tensor, nn
from torch.nn import functional

from fedspill.dataset import Examples
from fedspill.leaks.inputs.scoring.similarity import matched, psnr, ssim
from fedspill.leaks.inputs.search.search import Box, one_hot
from fedspill.models.resnet import BasicBlock, ResidualNetwork
from fedspill.seeds import generator, seed_of

SAMPLES, CLASSES = 8, 10
HELD_OUT, SPLIT = 80_000, 2_000  # seeds below draw from the first test images, the others from the rest


def halved(batch: Examples) -> Examples:
    return Examples(functional.avg_pool2d(batch.x, 2), batch.y)


def quality(pictures: Pictures, x: Tensor, real: Tensor) -> dict[str, float]:
    """Means in pixels, matched one to one."""
    guessed, true = ((y * pictures.deviation + pictures.mean).clamp(0, 1) for y in (x, real))
    guessed = guessed[matched(guessed, true)]
    return {"psnr": float(psnr(guessed, true).mean()), "ssim": float(ssim(guessed, true).mean())}


def distinct(pictures: Pictures, seed: int) -> Examples:
    """One test image of each of SAMPLES classes; development and held-out batches come from different images."""
    rng, test = generator(seed, "batch", SAMPLES), pictures.data.test
    order = torch.randperm(len(test), generator=rng)
    order = order[(order >= SPLIT) == (seed >= HELD_OUT)]
    classes = torch.randperm(CLASSES, generator=rng)[:SAMPLES]
    return halved(test.take(torch.stack([order[(test.y[order] == label).nonzero()[0, 0]] for label in classes])))


def trained(pictures: Pictures, seeds: Sequence[int], steps: int, device: str) -> list[nn.Module]:
    """Three stages of one block, 16 to 64 channels, after SGD on the training images; one network for each seed.

    All are trained at once; running statistics are those of 2,000 training images under the last weights.
    """
    models = [_fresh(seed) for seed in seeds]
    networks = Networks.of([by_batch(model) for model in models], device)
    train = halved(pictures.data.train)
    x, y = train.x.to(device), one_hot(train.y, CLASSES).float().to(device)
    rngs, match = [generator(seed, "training") for seed in seeds], networks.gradients(1)
    speed = {name: torch.zeros_like(value) for name, value in networks.parameters.items()}
    for step in range(steps):
        drawn = torch.stack([torch.randint(len(x), (64,), generator=rng) for rng in rngs]).to(device)
        for (name, value), gradient in zip(networks.parameters.items(), match(x[drawn], y[drawn]), strict=True):
            speed[name] = 0.9 * speed[name] + gradient
            value -= 0.1 * (1 - 0.99 * step / steps) * speed[name]
    told = []
    for index, (seed, model) in enumerate(zip(seeds, models, strict=True)):
        model.load_state_dict({n: v[index].cpu() for n, v in networks.parameters.items()}, strict=False)
        some = torch.randperm(len(train), generator=generator(seed, "statistics"))[:2_000]
        told.append(with_statistics_of(model, train.take(some).x))
    return told


def _fresh(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "network"))
        return ResidualNetwork(BasicBlock, (1, 1, 1), 3, 16, CLASSES, stem="cifar", last_bias=True)


@dataclass(frozen=True, eq=False)
class Task:
    """Batches of the common task, each with its network and with what its client sent."""

    pictures: Pictures
    seeds: tuple[int, ...]
    models: tuple[nn.Module, ...]
    x: Tensor  # (S, B, *shape), the truth
    targets: Tensor  # (S, B, classes)
    device: str
    evaluation: bool = False  # the client normalises by running statistics

    @staticmethod
    def of(
        pictures: Pictures, seeds: Sequence[int], states: dict[str, Any], device: str, *, evaluation: bool = False
    ) -> Task:
        models = []
        for seed in seeds:
            models.append(_fresh(seed).eval())
            models[-1].load_state_dict(states[str(seed)])
        batches = [distinct(pictures, seed) for seed in seeds]
        x = torch.stack([batch.x for batch in batches])
        targets = torch.stack([one_hot(batch.y, CLASSES).float() for batch in batches])
        return Task(pictures, tuple(seeds), tuple(models), x, targets, device, evaluation)

    def at(self, places: Sequence[int]) -> Task:
        """The batches at these places, as often as they are named."""
        some = list(places)
        seeds, models = tuple(self.seeds[p] for p in some), tuple(self.models[p] for p in some)
        return replace(self, seeds=seeds, models=models, x=self.x[some], targets=self.targets[some])

    def repeated(self, times: int) -> Task:
        """Every batch `times` times in a row."""
        return self.at([place for place in range(len(self.seeds)) for _ in range(times)])

    @property
    def box(self) -> Box:
        low, high = ((edge - self.pictures.mean) / self.pictures.deviation for edge in (0, 1))
        return Box(low.to(self.device), high.to(self.device))

    def starts(self, restarts: int) -> Tensor:
        """(S, restarts, B, *shape) normal noise, the same for all attacks on a batch."""
        drawn = [torch.randn(restarts, *self.x.shape[1:], generator=generator(s, "start")) for s in self.seeds]
        return torch.stack(drawn).to(self.device)

    def networks(self) -> Networks:
        """As the client runs them."""
        models = self.models if self.evaluation else [by_batch(model) for model in self.models]
        return Networks.of(models, self.device)

    def sent(self) -> list[Tensor]:
        """The gradient of each client's step, (S, *parameter)."""
        found = self.networks().gradients(1)(self.x.to(self.device), self.targets.to(self.device))
        return [tensor.detach() for tensor in found]

    def told(self, *, own: bool) -> Networks:
        """The networks with the batch's own statistics, as sent, or with running ones."""
        models = [with_statistics_of(m, x) for m, x in zip(self.models, self.x, strict=True)] if own else self.models
        return Networks.of(models, self.device)
