"""Marvell: noise for each of two classes that makes their gradients hardest to tell apart (Li et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class Marvell(Defense):
    """Of all Gaussian noise of a given power, that which leaves least Kullback-Leibler divergence between the classes.

    `power` is in units of the squared distance of the classes' mean gradients. Noise along the line between the means
    differs from noise across it, and one class's from the other's. It is for two classes; a batch of one class, and
    gradients of more classes, go back as they are.
    """

    name: ClassVar[str] = "marvell"
    title: ClassVar[str] = "Noise that makes two classes alike (Marvell)"
    paper: ClassVar[str] = "Li et al. 2021, Label Leakage and Protection in Two-party Split Learning"
    strengths = ({"power": 2.0}, {"power": 8.0})
    of_private_towers = True

    power: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.power < float("inf"):
            raise UsageError(f"power is a number from 0 up, got {self.power}.")

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        found = {name: self._hidden(tensor, labels, rng) for name, tensor in message.tensors.items()}
        return replace(message, tensors=found)

    def _hidden(self, gradients: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
        if gradients.ndim != 2 or gradients.shape[1] < 2 or len(torch.unique(labels)) != 2 or int(labels.max()) > 1:
            return gradients
        first, second = gradients[labels == 0].double(), gradients[labels == 1].double()
        between = second.mean(0) - first.mean(0)
        distance = float(between.square().sum())
        if self.power == 0 or distance <= 0:
            return gradients
        spreads = [max(float(part.var(0, unbiased=False).mean()) / distance, 1e-9) for part in (first, second)]
        share = float((labels == 1).double().mean())
        variances = least_telling(share, spreads[0], spreads[1], gradients.shape[1], self.power) * distance
        line = between / between.norm()
        out = gradients.double().clone()
        for label, (along, across) in enumerate(variances.reshape(2, 2)):
            own = labels == label
            noise = torch.randn(int(own.sum()), len(line), generator=rng).double() * math.sqrt(across)
            noise -= (noise @ line)[:, None] * line
            noise += torch.randn(int(own.sum()), 1, generator=rng).double() * math.sqrt(along) * line
            out[own] += noise
        return out.to(gradients)

    def effect(self) -> WireEffect:
        return WireEffect(returned_noise=self.power > 0)


def least_telling(share: float, first: float, second: float, width: int, power: float) -> NDArray[np.float64]:
    """Variances (first along, first across, second along, second across) that minimise the sum of both divergences.

    `share` is that of the second class, `first` and `second` are the classes' own variances, in units of the squared
    distance of the means. The power is the expected squared length of the noise: (1 - share) (along + (width - 1)
    across) of the first class plus the same of the second; it is used up in four parts, whose shares are searched for.
    """
    weights = np.array([1 - share, (1 - share) * (width - 1), share, share * (width - 1)])

    def variances(parts: NDArray[np.float64]) -> NDArray[np.float64]:
        shares = np.exp(parts - parts.max())
        found: NDArray[np.float64] = shares / shares.sum() * power / weights
        return found

    def divergence(parts: NDArray[np.float64]) -> float:
        along0, across0, along1, across1 = variances(parts)
        a, b, c, d = along0 + first, across0 + first, along1 + second, across1 + second
        return float((width - 1) * (b / d + d / b) + (a + 1) / c + (c + 1) / a)

    starts = (np.array([0.0, -3.0, 0.0, -6.0]), np.array([0.0, -6.0, 0.0, -3.0]))
    found = [minimize(divergence, start, method="Nelder-Mead", options={"maxiter": 80}) for start in starts]
    return variances(min(found, key=lambda one: float(one.fun)).x)
