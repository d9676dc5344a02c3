"""A gate on gradients: what only a few samples of a step have a say in is not learned (against the attacks of 004)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedspill.defense import Check, Defense, SentMessages
from fedspill.defenses.model_checks.isolating_units import contributors, fewest_between, fewest_in_pairs
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.training import LocalTraining, Tensors


@final
@dataclass(frozen=True)
class GradientGate(Defense):
    """Stops the gradient at hidden neurons to which fewer than `fewest` samples of a step effectively contribute.

    A planted neuron fires for its target alone: its gradient has one contributor, and is stopped whatever the weights
    look like. In steps of fewer than 4 times `fewest` samples a quarter of the step is asked for instead; a step of
    fewer than 8 samples cannot be gated.

    With `pairs`, neurons that fewer samples tell from another neuron are stopped too: bins single samples out by
    differences. Samples count alike there, however wrong the model is about them. So are rectified neurons that fire
    for the same samples as another, but for fewer: these are what differences of three and more are made of.
    """

    name: ClassVar[str] = "gradient-gate"
    title: ClassVar[str] = "Hold back changes that rest on few samples"
    paper: ClassVar[str] = "fedspill, after 004"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"fewest": 5.0}, {"fewest": 5.0, "pairs": True})

    fewest: float = 5.0
    pairs: bool = False
    firing: bool = True  # with pairs: whom neurons fire for is compared too

    def __post_init__(self) -> None:
        if not self.fewest > 1:
            raise UsageError(f"fewest is a number of samples above 1, got {self.fewest}.")

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _Gate(self.fewest, self.pairs, self.firing))

    def verify(self, sent: SentMessages) -> Check:
        return Check(self.name, None, "a gate inside local training leaves no mark on a message")


@final
@dataclass(frozen=True)
class _Gate(StepRule):
    fewest: float
    pairs: bool
    firing: bool

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        hidden = [module for module in model.modules() if isinstance(module, nn.Linear)][:-1]
        return [module.register_forward_hook(self._hook) for module in hidden]

    def changed(self, gradients: Tensors, size: int, rng: torch.Generator) -> Tensors:
        """What later layers read from a stopped neuron is not learned either: its activation tells as much."""
        weights = [name for name, g in gradients.items() if name.endswith(".weight") and g.ndim == 2]
        for here, following in pairwise(weights):
            stopped = gradients[here].abs().sum(1) == 0
            if len(stopped) == gradients[following].shape[1]:
                gradients[following] = gradients[following] * ~stopped
        return gradients

    def _hook(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad and output.ndim == 2:
            output.register_hook(self._stop)  # type: ignore[no-untyped-call]

    def _stop(self, gradient: Tensor) -> Tensor:
        needed = min(self.fewest, len(gradient) / 4)
        open_ = contributors(gradient) >= needed
        if self.pairs and len(gradient) >= 8:
            even = gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
            open_ &= fewest_in_pairs(even) >= needed
            if self.firing:
                open_ &= fewest_between(gradient) >= needed
        return gradient * open_
