"""DP-SGD: every sample's gradient clipped, noise on their sum, epsilon counted (Abadi et al. 2016; paper 000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch

from fedspill.defense import Check, DataUse, Defense, Guarantee, SentMessages, WireEffect
from fedspill.defenses.loss_distribution import tighter_epsilon
from fedspill.defenses.noise import Source, refuse_claim, unit_noise
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.training import LocalTraining, Tensors


@final
@dataclass(frozen=True)
class DpSgd(Defense):
    """Each sample's gradient is clipped to `clip`; noise of `noise_multiplier` times that goes on each step's sum.

    The guarantee is for one sample of one client, over all steps of all rounds. With sampling = "poisson" every step
    takes each sample with the same chance, which is what the accountant (and Opacus) assumes. With "shuffle" steps cut
    up a shuffled pass, as usual; then no sampling is counted on, and epsilon is that of one release a pass.
    """

    name: ClassVar[str] = "dp-sgd"
    title: ClassVar[str] = "DP-SGD: clip each sample's gradient, add noise"
    paper: ClassVar[str] = "000"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"noise_multiplier": 1.0},)

    clip: float = 1.0
    noise_multiplier: float = 1.0
    sampling: Literal["poisson", "shuffle"] = "poisson"
    noise: Source = "seeded"
    claim: bool = False
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.clip > 0 or self.noise_multiplier < 0 or not 0 < self.delta < 1:
            raise UsageError(
                f"Expected clip > 0, noise_multiplier >= 0 and 0 < delta < 1, "
                f"got {self.clip}, {self.noise_multiplier} and {self.delta}."
            )
        refuse_claim(self.claim, self.noise, self.name)

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _NoisySum(self))

    def effect(self) -> WireEffect:
        return WireEffect(sample_clip=self.clip, sample_sum_noise=self.noise_multiplier * self.clip)

    def claims(self, use: DataUse) -> Guarantee | None:
        if self.noise_multiplier == 0:
            return None
        if self.sampling == "poisson":
            steps = use.rounds * use.steps
            epsilon, by = tighter_epsilon(self.noise_multiplier, use.sampling, steps, self.delta)
            how = f"{by}, Poisson sampling"
        else:
            # A sample is in one step of each pass. Replacing it moves the sum by twice the clip.
            releases = use.rounds * use.epochs
            epsilon, by = tighter_epsilon(self.noise_multiplier / 2, 1.0, releases, self.delta)
            how = f"{by}, one release a pass"
        return Guarantee(epsilon, self.delta, f"{how}, one sample", holds=self.noise == "secure")

    def verify(self, sent: SentMessages) -> Check:
        if self.noise_multiplier == 0:
            return Check(self.name, False, "adds no noise: noise_multiplier is 0, so there is no guarantee")
        return Check(self.name, None, "noise inside local training cannot be told from training by its messages")


@final
@dataclass(frozen=True)
class _NoisySum(StepRule):
    defense: DpSgd

    def sample_clip(self) -> float | None:
        return self.defense.clip

    @property
    def draws_at_random(self) -> bool:
        return self.defense.sampling == "poisson"

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        sigma = self.defense.noise_multiplier * self.defense.clip / size
        source = self.defense.noise
        return {name: part + sigma * unit_noise(part, "gaussian", source, rng) for name, part in gradients.items()}
