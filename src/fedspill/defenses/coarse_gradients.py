"""Coarse gradients: what goes back to a party of a vertical federation takes few values, signs or steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class CoarseGradients(Defense):
    """Sends back signs at one size, or (`values` "bins") the nearest of `bins` steps up to two deviations."""

    name: ClassVar[str] = "coarse-gradients"
    title: ClassVar[str] = "Signs or steps instead of gradients that go back"
    paper: ClassVar[str] = "Fu et al. 2022: signSGD, and multistep gradients"
    strengths = ({"values": "sign"}, {"values": "bins"})
    of_private_towers = True

    values: Literal["sign", "bins"] = "sign"
    bins: int = 6

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise UsageError(f"Expected at least 2 bins, got {self.bins}.")

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        return replace(message, tensors={name: self._coarse(tensor) for name, tensor in message.tensors.items()})

    def _coarse(self, tensor: Tensor) -> Tensor:
        size = tensor.abs().mean()
        if not float(size) > 0:
            return tensor
        if self.values == "sign":
            return tensor.sign() * size
        end = size + 2 * tensor.std(unbiased=False)
        step = 2 * end / self.bins
        return (tensor.clamp(-end, end) / step).round() * step

    def effect(self) -> WireEffect:
        return WireEffect(returned_coarse=True)
