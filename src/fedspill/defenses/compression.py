"""Gradient compression: the small coordinates of each tensor are not sent (papers 002 and 003)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.defenses.base import Defense
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class Compression(Defense):
    """Sets the `drop` smallest share of each tensor to zero, by absolute value, tensor by tensor."""

    name: ClassVar[str] = "compression"
    title: ClassVar[str] = "Send the large coordinates only"
    paper: ClassVar[str] = "003"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"drop": 0.8}, {"drop": 0.9}, {"drop": 0.99})

    drop: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise UsageError(f"drop is a share in [0, 1), got {self.drop}.")

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        return replace(message, tensors={name: self._kept(tensor) for name, tensor in message.tensors.items()})

    def _kept(self, tensor: Tensor) -> Tensor:
        dropped = int(self.drop * tensor.numel())
        if dropped == 0:
            return tensor
        threshold = tensor.abs().flatten().kthvalue(dropped).values
        return torch.where(tensor.abs() > threshold, tensor, 0)
