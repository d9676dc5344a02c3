"""Noise on what the parties of a vertical federation send up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from fedspill.defense import Defense, WireEffect
from fedspill.errors import UsageError
from fedspill.messages import Message


@final
@dataclass(frozen=True)
class EmbeddingNoise(Defense):
    """Gaussian noise on every number of an embedding, `sigma` times the deviation of all numbers of the batch.

    It is there in training and in every answer of the model afterwards.
    """

    name: ClassVar[str] = "embedding-noise"
    title: ClassVar[str] = "Noise on embeddings"
    paper: ClassVar[str] = ""
    strengths = ({"sigma": 0.2}, {"sigma": 1.0})
    of_private_towers = True

    sigma: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < float("inf"):
            raise UsageError(f"sigma is a deviation from 0 up, got {self.sigma}.")

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        if message.kind != "embedding":
            return message
        noisy = {}
        for name, tensor in message.tensors.items():
            deviation = self.sigma * tensor.std(unbiased=False)
            noisy[name] = tensor + deviation * torch.randn(tensor.shape, generator=rng).to(tensor)
        return replace(message, tensors=noisy)

    def effect(self) -> WireEffect:
        return WireEffect(embedding_noise=self.sigma)
