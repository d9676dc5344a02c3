"""Gradient compression: the small coordinates of each tensor are not sent (papers 002 and 003)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from fedspill.defense import Check, Defense, SentMessages, WireEffect
from fedspill.defenses.head import head_names
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class Compression(Defense):
    """Sets the `drop` smallest share of each tensor to zero, by absolute value, tensor by tensor.

    of = "head" does so to the weights of the last layer alone, as 002 describes: a client sends the largest of the
    weights that lead into an output neuron.
    """

    name: ClassVar[str] = "compression"
    title: ClassVar[str] = "Send the large coordinates only"
    paper: ClassVar[str] = "003"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"drop": 0.9},)

    drop: float = 0.9
    of: Literal["every-tensor", "head"] = "every-tensor"

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise UsageError(f"drop is a share in [0, 1), got {self.drop}.")

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        if self.of == "every-tensor":
            return replace(message, tensors={name: self._kept(tensor) for name, tensor in message.tensors.items()})
        head = head_names(message.tensors)[:1]
        rows = {name: torch.stack([self._kept(row) for row in message.tensors[name]]) for name in head}
        return replace(message, tensors={**message.tensors, **rows})

    def _kept(self, tensor: Tensor) -> Tensor:
        dropped = int(self.drop * tensor.numel())
        if dropped == 0:
            return tensor
        size = tensor.abs()
        return torch.where(size > _ranked(size.flatten(), dropped), tensor, 0)

    @property
    def takes_tensors_apart(self) -> bool:
        return self.of == "every-tensor"

    def effect(self) -> WireEffect:
        if self.of == "head":
            return WireEffect(last_rows_dropped=self.drop)
        return WireEffect(dropped=self.drop)

    def verify(self, sent: SentMessages) -> Check:
        if self.drop == 0:
            return Check(self.name, False, "drops nothing: drop is 0")
        for message in sent.messages:
            for name in message.tensors if self.of == "every-tensor" else head_names(message.tensors)[:1]:
                tensor = message.tensors[name]
                zeros, due = int((tensor == 0).sum()), int(self.drop * tensor.numel())
                if zeros < due and self.of == "every-tensor":
                    said = f"{zeros} zeros of {tensor.numel()} in {name!r}, {due} were configured"
                    return Check(self.name, False, f"{message.sender} sent {said} in round {message.round}")
        return Check(
            self.name, True if sent.messages else None, f"{len(sent.messages)} messages are as sparse as configured"
        )


def _ranked(values: Tensor, rank: int) -> Tensor:
    """The value of that rank, the smallest having rank 1, counted from the nearer end.

    By `topk`, because `kthvalue` leaves a long vector to a single block of a GPU.
    """
    above = len(values) - rank
    if rank <= above:
        return values.topk(rank, largest=False, sorted=False).values.max()
    return values.topk(above + 1, sorted=False).values.min()
