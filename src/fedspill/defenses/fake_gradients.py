"""Fake gradients (paper 001, CAFE, section 3.4): random values in the order of the true ones.

The algorithm itself is in an appendix that the paper's text refers to; of its two readings both are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class FakeGradients(Defense):
    """Draws `candidates` sets of normal values, takes the sorted one nearest to the sorted gradient, and sends it.

    "ranks" is the paper's text: the largest value goes where the largest entry is, and so on. "clamped" is what others
    implement: an entry g of rank l becomes min(f_l, max(g, -f_l)), f_l the fake value of that rank, which keeps the
    true value wherever f_l is positive and larger, and replaces the rest. Both hide sizes and keep order: an attacker
    who knows that can undo much of it (papers/001). `scaled` draws with the deviation of the gradient itself instead
    of `deviation`, without which training takes steps of another size.

    As printed, deviation is the root of 1.1 and candidates are 1000. A thousand draws for every tensor are slow; the
    nearest of a few differs from it by far less than either does from the gradient.
    """

    name: ClassVar[str] = "fake-gradients"
    title: ClassVar[str] = "Send random values in the true order"
    paper: ClassVar[str] = "001"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"reading": "ranks"},)

    reading: Literal["ranks", "clamped"] = "ranks"
    deviation: float = 1.1**0.5
    candidates: int = 10
    scaled: bool = True

    def __post_init__(self) -> None:
        if self.candidates < 1 or not self.deviation > 0:
            raise UsageError(
                f"Expected at least one candidate and a positive deviation, got {self.candidates} and {self.deviation}."
            )

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        return replace(message, tensors={name: self._faked(tensor, rng) for name, tensor in message.tensors.items()})

    @property
    def takes_tensors_apart(self) -> bool:
        return True

    def effect(self) -> WireEffect:
        return WireEffect(only_order=True)

    def _faked(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        if tensor.numel() < 2:
            return tensor
        true, order = tensor.flatten().double().sort(descending=True)
        deviation = float(true.std()) if self.scaled else self.deviation
        nearest, least = true, torch.inf
        for _ in range(self.candidates):
            drawn = deviation * sorted_normal(len(true), rng)
            distance = float((drawn - true).square().sum())
            if distance < least:
                nearest, least = drawn, distance
        values = nearest if self.reading == "ranks" else torch.minimum(nearest, torch.maximum(true, -nearest))
        fake = torch.empty_like(true)
        fake[order] = values
        return fake.to(tensor).reshape(tensor.shape)


def sorted_normal(count: int, rng: torch.Generator) -> Tensor:
    """Independent standard normal values in descending order (count,), float64, without sorting any.

    Sums of exponential gaps, over the last of them, are uniform values in ascending order.
    """
    places = torch.empty(count + 1, dtype=torch.float64).exponential_(generator=rng).cumsum(0)
    drawn: Tensor = -torch.special.ndtri(places[:-1] / places[-1])
    return drawn
