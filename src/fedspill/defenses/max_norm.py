"""Max-norm: gradients that go back are stretched at random until all are as long as the longest (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class MaxNorm(Defense):
    """Noise along each gradient itself, so that in the mean square all of a batch have the length of the longest.

    It hides lengths and turns many gradients around. What is drawn anew each time averages out.
    """

    name: ClassVar[str] = "max-norm"
    title: ClassVar[str] = "Stretch the gradients that go back to one length"
    paper: ClassVar[str] = "Li et al. 2021, Label Leakage and Protection in Two-party Split Learning"
    strengths = ({},)
    of_private_towers = True

    def returned(self, message: Message, labels: Tensor, rng: torch.Generator) -> Message:
        stretched = {}
        for name, tensor in message.tensors.items():
            length = tensor.flatten(1).norm(dim=1).clamp_min(1e-30)
            deviation = ((length.max() / length).square() - 1).clamp_min(0).sqrt()
            factor = 1 + deviation * torch.randn(len(tensor), generator=rng).to(tensor)
            # A gradient of zero has no direction to be stretched in.
            factor = torch.where(length > 1e-30, factor, torch.ones_like(factor))
            stretched[name] = tensor * factor.reshape(-1, *(1,) * (tensor.ndim - 1))
        return replace(message, tensors=stretched)

    def effect(self) -> WireEffect:
        return WireEffect(returned_noise=True)
