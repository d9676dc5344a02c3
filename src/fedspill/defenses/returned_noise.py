"""Gaussian noise on the gradients that go back to the parties of a vertical federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class ReturnedNoise(Defense):
    """The same noise in every direction, `power` times as strong as the batch's gradients are in the mean square.

    It is drawn anew each time, so that a party that is sent the gradient of a sample in every epoch averages it out.
    """

    name: ClassVar[str] = "returned-noise"
    title: ClassVar[str] = "Noise on the gradients that go back"
    paper: ClassVar[str] = "Li et al. 2021, the isotropic baseline"
    strengths = ({"power": 2.0}, {"power": 32.0})
    of_private_towers = True

    power: float = 8.0

    def __post_init__(self) -> None:
        if not 0 <= self.power < float("inf"):
            raise UsageError(f"power is a number from 0 up, got {self.power}.")

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        noisy = {}
        for name, tensor in message.tensors.items():
            deviation = (self.power * tensor.square().mean()).sqrt()
            noisy[name] = tensor + deviation * torch.randn(tensor.shape, generator=rng).to(tensor)
        return replace(message, tensors=noisy)

    def effect(self) -> WireEffect:
        return WireEffect(returned_noise=self.power > 0)
