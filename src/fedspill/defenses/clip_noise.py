"""Clipping and noise on what leaves the client: local differential privacy as papers 000, 001 and 003 use it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch

from fedspill.defense import Check, DataUse, Defense, Guarantee, SentMessages, WireEffect
from fedspill.defenses.accountant import laplace_epsilon
from fedspill.defenses.loss_distribution import tighter_epsilon
from fedspill.defenses.noise import Law, Source, lacking, refuse_claim, unit_noise
from fedspill.defenses.norms import norm_of
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.messages import Message
from fedspill.training import LocalTraining, Tensors


@final
@dataclass(frozen=True)
class ClipNoise(Defense):
    """Scales the whole update down to norm `clip`, then adds noise of standard deviation `sigma` to every coordinate.

    With per = "step" the same is done to the batch gradient of every local step, as 003 does, and the update as such is
    left alone. The guarantee is for a client's whole data: whatever they are, the clipped update moves by at most twice
    the norm. No sampling is counted on.
    """

    name: ClassVar[str] = "clip-noise"
    title: ClassVar[str] = "Clip the update, add noise"
    paper: ClassVar[str] = "003"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = (
        {"clip": 1.0, "sigma": 0.01},
        {"clip": 1.0, "sigma": 0.1},
    )

    clip: float | None = 1.0  # None: no clipping
    sigma: float = 0.01  # of one coordinate, in the units of what is clipped
    law: Law = "gaussian"
    per: Literal["update", "step"] = "update"
    noise: Source = "seeded"
    claim: bool = False
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.sigma < 0 or (self.clip is not None and self.clip <= 0):
            raise UsageError(f"Expected clip > 0 and sigma >= 0, got {self.clip} and {self.sigma}.")
        refuse_claim(self.claim, self.noise, self.name)

    def outgoing(self, message: Message, rng: torch.Generator) -> Message:
        if self.per == "step":
            return message
        return replace(message, tensors=self.clipped_and_noised(dict(message.tensors), rng))

    def local(self, training: LocalTraining) -> LocalTraining:
        return training if self.per == "update" else guarded(training, _EachStep(self))

    def effect(self) -> WireEffect:
        if self.per == "step":
            return WireEffect(step_clip=self.clip, step_noise=self.sigma)
        return WireEffect(update_clip=self.clip, update_noise=self.sigma)

    def clipped_and_noised(self, tensors: Tensors, rng: torch.Generator) -> Tensors:
        norm = norm_of(tensors)
        scale = 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
        return {
            name: scale * tensor + self.sigma * unit_noise(tensor, self.law, self.noise, rng)
            for name, tensor in tensors.items()
        }

    def claims(self, use: DataUse) -> Guarantee | None:
        if self.clip is None or self.sigma == 0:
            return None
        releases = use.rounds * (use.epochs * use.steps if self.per == "step" else 1)
        if self.law == "laplace":
            # The norm bounds the sum of absolute values by the square root of the number of coordinates.
            furthest = 2 * self.clip * math.sqrt(use.parameters)
            epsilon, delta, by = laplace_epsilon(self.sigma / math.sqrt(2), furthest, releases), 0.0, "added up"
        else:
            epsilon, by = tighter_epsilon(self.sigma / (2 * self.clip), 1.0, releases, self.delta)
            delta = self.delta
        return Guarantee(epsilon, delta, f"{by}, a client's whole data", holds=self.noise == "secure")

    def verify(self, sent: SentMessages) -> Check:
        if self.sigma == 0:
            said = "adds no noise: sigma is 0" + ("" if self.clip is None else f", it clips to {self.clip:g} only")
            return Check(self.name, False, said)
        if self.per == "step" or not sent.messages:
            return Check(self.name, None, "noise inside local training cannot be told from training by its messages")
        for message in sent.messages:
            found = lacking(message.tensors, self.sigma, self.law)
            if found is not None:
                tensor, spread = found
                said = f"{tensor!r} with a spread of {spread:.3g} in round {message.round}"
                return Check(self.name, False, f"{message.sender} sent {said}, noise of {self.sigma:g} was configured")
            most = self._longest(message)
            if norm_of(message.tensors) > most:
                said = f"norm {norm_of(message.tensors):.3g} in round {message.round}, expected at most {most:.3g}"
                return Check(self.name, False, f"{message.sender} sent an update of {said}")
        return Check(self.name, True, f"{len(sent.messages)} messages have the noise and the norm that were configured")

    def _longest(self, message: Message) -> float:
        """What clip and noise together may have as norm; noise of that many coordinates hardly ever exceeds it."""
        if self.clip is None:
            return math.inf
        numbers = sum(tensor.numel() for tensor in message.tensors.values())
        return self.clip + self.sigma * (math.sqrt(numbers) + (6 if self.law == "gaussian" else 40))


@final
@dataclass(frozen=True)
class _EachStep(StepRule):
    defense: ClipNoise

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        return self.defense.clipped_and_noised(gradients, rng)
