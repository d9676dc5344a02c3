"""What is known of inputs before any gradient: smoothness, range, feature statistics, agreement between restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.total_variation import neighbour_differences


class Prior(ABC):
    """A penalty on candidates x (R, B, *shape)."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(R,) the weighted penalty of each restart."""


@final
@dataclass(frozen=True)
class TotalVariation(Prior):
    """Mean absolute difference of neighbouring pixels, down plus across."""

    weight: float

    def __call__(self, x: Tensor) -> Tensor:
        down, across = neighbour_differences(x)
        return self.weight * (down.abs().flatten(1).mean(1) + across.abs().flatten(1).mean(1))


@final
@dataclass(frozen=True)
class SquaredNorm(Prior):
    """Mean squared value."""

    weight: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.weight * x.flatten(1).square().mean(1)


@final
@dataclass(frozen=True)
class ValueRange(Prior):
    """How far values lie outside of a range, squared: the sum over a sample, the mean over samples."""

    weight: float
    low: float
    high: float

    def __call__(self, x: Tensor) -> Tensor:
        outside = x - x.clamp(self.low, self.high)
        return self.weight * outside.square().flatten(2).sum(2).mean(1)


@final
@dataclass(frozen=True)
class EpochAgreement(Prior):
    """Mean squared difference between the mean images of any two epochs: whatever their order, they are the same ones.

    Candidates are one set for each of `epochs`, one behind the other (Dimitrov et al. 2022).
    """

    weight: float
    epochs: int

    def __call__(self, x: Tensor) -> Tensor:
        means = x.reshape(len(x), self.epochs, -1, *x.shape[2:]).mean(2).flatten(2)  # (R, epochs, pixels)
        return self.weight * (means[:, :, None] - means[:, None]).square().mean((1, 2, 3))


@final
@dataclass(frozen=True)
class GroupConsistency(Prior):
    """Distance of each restart from the mean of all, as GradInversion (Yin et al. 2021), without image registration."""

    weight: float

    def __call__(self, x: Tensor) -> Tensor:
        apart = (x - x.mean(0, keepdim=True).detach()).flatten(1)
        return self.weight * (apart.square().sum(1) + 1e-12).sqrt()


@final
@dataclass(frozen=True, eq=False)
class BatchNormStatistics(Prior):
    """Distance of a candidate batch's feature statistics from a network's running ones (GradInversion, Eq. 10).

    `first` multiplies the first layer's term. The network is run in evaluation mode, so that restarts do not mix.
    """

    model: nn.Module
    weight: float
    first: float = 10.0

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for index, (layer, features) in enumerate(normalised(self.model, x.flatten(0, 1))):
            grouped = (
                features.reshape(*x.shape[:2], *features.shape[1:]).transpose(1, 2).flatten(2)
            )  # (R, channels, B * pixels)
            assert layer.running_mean is not None
            assert layer.running_var is not None
            mean = (grouped.mean(2) - layer.running_mean).square().sum(1)
            variance = (grouped.var(2, unbiased=False) - layer.running_var).square().sum(1)
            scale = self.first if index == 0 else 1.0
            total = total + scale * ((mean + 1e-12).sqrt() + (variance + 1e-12).sqrt())
        return self.weight * total


def normalised(model: nn.Module, x: Tensor) -> list[tuple[nn.modules.batchnorm._BatchNorm, Tensor]]:
    """The batch-norm layers with running statistics, and what each is fed for inputs x (n, *shape)."""
    seen: list[tuple[nn.modules.batchnorm._BatchNorm, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
        seen.append((layer, inputs[0]))

    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    training = model.training
    try:
        if layers:
            model.eval()(x)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return seen
