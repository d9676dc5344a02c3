"""The networks, batches and gradients that reconstruction is measured on; one seed gives the same ones everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedspill.data.cifar10 import Cifar10
from fedspill.data.cifar100 import Cifar100
from fedspill.dataset import Dataset, Examples
from fedspill.leaks.inputs.scoring.similarity import matched, psnr
from fedspill.models.mlp import Mlp
from fedspill.models.resnet import ResNet18
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.seeds import generator, seed_of

# By name: network, data set, batch size.
WORKLOADS: dict[str, tuple[str, str, int]] = {
    "t10-4": ("t10", "cifar100", 4),
    "lenet-1": ("lenet", "cifar10", 1),
    "lenet-8": ("lenet", "cifar10", 8),
    "small-cnn-1": ("small-cnn", "cifar10", 1),
    "resnet18-1": ("resnet18", "cifar10", 1),
    "resnet18-100-1": ("resnet18-100", "cifar100", 1),
    "resnet18-100-4": ("resnet18-100", "cifar100", 4),
}


def seconds(device: str) -> float:
    """Of CPU time; of the clock where a GPU works, once it is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True, eq=False)
class Pictures:
    """A data set with normalised inputs, and the way back to pixels in [0, 1]."""

    data: Dataset
    mean: Tensor  # (channels, 1, 1)
    deviation: Tensor

    @staticmethod
    def of(name: str, folder: Path) -> Pictures:
        source = {"cifar10": Cifar10, "cifar100": Cifar100}[name]
        raw = source().load(folder).train.x
        mean, deviation = (value[:, None, None] for value in (raw.mean((0, 2, 3)), raw.std((0, 2, 3))))
        return Pictures(source(normalize=True).load(folder), mean, deviation)

    def batch(self, size: int, seed: int) -> Examples:
        """Half of one label from four samples on, as Table 10 of paper 003 has it; else any samples. Test images."""
        test = self.data.test
        if size >= 4 and len(self.data.classes) == 100:
            partition = HalfQuarterRest(batch=size, shortage="cap")
            return test.take(partition.split(test, 1, generator(seed, "batch", size))[0])
        return test.take(torch.randperm(len(test), generator=generator(seed, "batch", size))[:size])

    def pixels(self, x: Tensor) -> Tensor:
        return (x.reshape(-1, *self.data.shape).double() * self.deviation + self.mean).clamp(0, 1)

    def quality(self, samples: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) PSNR of each true sample's match, 0 where there is none; and which guess that was, -1 for none."""
        truth = self.pixels(real)
        if not len(samples):
            return torch.zeros(len(real), dtype=torch.float64), torch.full((len(real),), -1)
        guessed = self.pixels(samples)
        order = matched(guessed, truth)
        values = torch.zeros(len(real), dtype=torch.float64)
        values[order >= 0] = psnr(guessed[order[order >= 0]], truth[order >= 0])
        return values, order


def network(kind: str, seed: int) -> nn.Module:
    """Table 10's MLP ("t10": ReLU, ReLU, Tanh) and its kin, DLG's LeNet, a small ReLU CNN, ResNet18."""
    widths, shape = (1024, 1024, 1024), (3, 32, 32)
    if kind in ("t10", "tanh", "sigmoid", "gelu"):
        first = "relu" if kind == "t10" else kind
        last = "tanh" if kind == "t10" else None
        spec = Mlp(widths=widths, activation=first, last_activation=last)  # type: ignore[arg-type]
        return spec.build(shape, 100, seed=seed_of(seed, "network"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "network"))
        if kind == "lenet":
            return _lenet()
        if kind == "relu-lenet":
            return _lenet(nn.ReLU, None)
        if kind == "small-cnn":
            return _small_cnn()
    classes = {"resnet18": 10, "resnet18-100": 100}[kind]
    return ResNet18().build(shape, classes, seed=seed_of(seed, "network")).eval()


def _lenet(activation: type[nn.Module] = nn.Sigmoid, weights: float | None = 0.5) -> nn.Module:
    """DLG's: sigmoid, strides instead of pools, weights uniform in [-0.5, 0.5]; else as torch starts them."""
    layers: list[nn.Module] = []
    for channels, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(channels, 12, 5, padding=2, stride=stride), activation()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 10))
    if weights is not None:
        for parameter in model.parameters():
            parameter.data.uniform_(-weights, weights)
    return model


def _small_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, out, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [nn.Conv2d(channels, out, 3, padding=1, stride=stride), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10))


def gradients(model: nn.Module, batch: Examples) -> dict[str, Tensor]:
    """The mean gradient in float32, as a client sends it."""
    loss = nn.functional.cross_entropy(model(batch.x), batch.y)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def local_update(model: nn.Module, batch: Examples, sizes: list[int], lr: float) -> dict[str, Tensor]:
    """The update of local SGD steps on `sizes` samples each, in float32 with its rounding."""
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first = 0
    for size in sizes:
        step = gradients(model, batch.take(torch.arange(first, first + size)))
        first += size
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= lr * step[name]
    update = {name: parameter.detach() - start[name] for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(start[name])
    return update


def noised(tensors: Mapping[str, Tensor], relative: float, seed: int) -> dict[str, Tensor]:
    """Gaussian noise of that share of each tensor's norm."""
    rng = generator(seed, "noise")
    return {
        name: tensor + relative * tensor.norm() * torch.randn(tensor.shape, generator=rng) / tensor.numel() ** 0.5
        for name, tensor in tensors.items()
    }
