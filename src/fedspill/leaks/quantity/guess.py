"""ClassQuantities: what Quantity Inference says of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class ClassQuantities(Guess):
    """How many other clients of a round own each class: clients (origins, classes), not rounded; NaN where aborted."""

    of: Sequence[Origin]
    clients: Tensor
    me: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def check(self) -> None:
        if self.clients.ndim != 2 or len(self.clients) != len(self.of):
            raise AttackFailed(f"Expected clients of shape ({len(self.of)}, classes), got {tuple(self.clients.shape)}.")
        if bool(torch.isinf(self.clients).any()) or bool((self.clients < 0).any()):
            raise AttackFailed("Expected numbers of clients that are finite and not negative, or NaN for an abort.")
