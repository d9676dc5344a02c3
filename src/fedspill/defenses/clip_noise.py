"""Clipping and noise on what leaves the client: local differential privacy as papers 000, 001 and 003 use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch

from fedspill.defenses.base import Defense
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class ClipNoise(Defense):
    """Scales the whole update down to norm `clip`, then adds noise of standard deviation `sigma` to every coordinate.

    This is the mechanism, not a guarantee: no epsilon is claimed, because one follows only from the number of rounds,
    the sampling and an accountant.
    """

    name: ClassVar[str] = "clip-noise"
    title: ClassVar[str] = "Clip the update, add noise"
    paper: ClassVar[str] = "003"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = (
        {"clip": 1.0, "sigma": 0.001},
        {"clip": 1.0, "sigma": 0.01},
        {"clip": 1.0, "sigma": 0.1},
    )

    clip: float | None = 1.0  # None: no clipping
    sigma: float = 0.01  # of one coordinate, in the units of the update
    law: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        if self.sigma < 0 or (self.clip is not None and self.clip <= 0):
            raise UsageError(f"Expected clip > 0 and sigma >= 0, got {self.clip} and {self.sigma}.")

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(message.tensors.values())))))
        scale = 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
        noised = {}
        for name, tensor in message.tensors.items():
            noise = torch.randn(tensor.shape, generator=rng)
            if self.law == "laplace":
                # A normal whose variance is a unit exponential is Laplace of unit variance.
                noise = noise * torch.empty(tensor.shape).exponential_(generator=rng).sqrt()
            noised[name] = scale * tensor + self.sigma * noise.to(tensor)
        return replace(message, tensors=noised)
