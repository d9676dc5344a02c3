"""Quantization: an update leaves in fewer bits, as fp16, bf16 or int8 with one scale for each tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from fedspill.defense import Check, Defense, Rounding, SentMessages, WireEffect
from fedspill.messages import Message

Bits: TypeAlias = Literal["fp16", "bf16", "int8"]
_ROUNDING: dict[Bits, Rounding] = {
    "fp16": Rounding("fp16", of_value=2.0**-10),  # bits of the fraction
    "bf16": Rounding("bf16", of_value=2.0**-7),
    "int8": Rounding("int8", of_largest=1 / 64),  # 127 steps, rounded up to a power of two: at most 1/64 of the largest
}


@final
@dataclass(frozen=True)
class Quantization(Defense):
    """Rounds every coordinate to what the type can hold; the message keeps its own type, as the server unpacks it.

    Made for bandwidth, not for privacy: rounding hides what is smaller than its steps and nothing else.
    """

    name: ClassVar[str] = "quantization"
    title: ClassVar[str] = "Send fewer bits"
    paper: ClassVar[str] = ""

    type: Bits = "int8"

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        return replace(message, tensors={name: rounded(tensor, self.type) for name, tensor in message.tensors.items()})

    def effect(self) -> WireEffect:
        return WireEffect(rounding=_ROUNDING[self.type])

    def verify(self, sent: SentMessages) -> Check:
        for message in sent.messages:
            for name, tensor in message.tensors.items():
                if tensor.is_floating_point() and not bool(torch.equal(rounded(tensor, self.type), tensor)):
                    said = f"{name!r} with more bits than {self.type} in round {message.round}"
                    return Check(self.name, False, f"{message.sender} sent {said}")
        return Check(self.name, True if sent.messages else None, f"{len(sent.messages)} messages fit into {self.type}")


def rounded(tensor: Tensor, bits: Bits) -> Tensor:
    """The nearest values that the type holds, in the tensor's own type; int8 has 127 steps up to the largest value."""
    if bits == "fp16":
        return tensor.clamp(-65504, 65504).to(torch.float16).to(tensor.dtype)
    if bits == "bf16":
        return tensor.to(torch.bfloat16).to(tensor.dtype)
    largest = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    # A power of two as step: rounding what is rounded already changes nothing, and the scale itself is exact.
    step = torch.exp2(torch.ceil(torch.log2((largest / 127).clamp_min(torch.finfo(tensor.dtype).tiny))))
    return (tensor / step).round().clamp(-127, 127) * step
