"""CAFE as published: three coupled descents over thousands of rounds (paper 001, Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable, UsageError
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.vertical.published_algorithms import STEPS, PublishedConstants, PublishedDescent
from fedspill.leaks.inputs.vertical.server_observations import NEEDED, complete_rounds, observe, origins
from fedspill.threat import needs
from fedspill.trace import View


@final
@dataclass(frozen=True)
class CafePaper(Attack):
    """Goes through the recorded rounds again and again: a model that stands still answers the same batch alike.

    `loop` "single" is Algorithm 4: all steps in every round, or, with `switching`, one after the other as soon as the
    loss of a step falls below 1e-9 and 5e-9 (the paper's text; the released code does not switch). "nested" is
    Algorithm 3: each step in `iterations` rounds of its own. At the released constants it is far from converged after
    8,000 rounds (papers/001); nothing is certified.
    """

    name: ClassVar[str] = "cafe-paper"
    title: ClassVar[str] = "CAFE, as published"
    paper: ClassVar[str] = "001"
    needs = needs(sees=NEEDED, knows=["architecture"])
    leak = INPUTS
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "vertical-mlp", "parties": 4, "widths": [64, 16]},
        "federation": {"kind": "vertical", "samples": 16, "rounds": 100, "static": True},
        "training": {"batch_size": 4},
    }

    iterations: int = 3000
    loop: Literal["single", "nested"] = "single"
    switching: bool = False
    alpha: float = PublishedConstants.alpha
    beta: float = PublishedConstants.beta
    gamma: float = PublishedConstants.gamma
    xi: float = PublishedConstants.xi
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise UsageError(f"iterations must be at least 1, got {self.iterations}.")

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        observed = observe(view, self.device)
        rounds = complete_rounds(view, observed, self.device)
        if not rounds:
            raise NotApplicable("No round has the gradients of all parties.")
        constants = PublishedConstants(self.alpha, self.beta, self.gamma, self.xi)
        state = PublishedDescent(observed.nets(0), observed.samples, observed.classes, rng, constants)
        stages = [STEPS] if self.loop == "single" else [(1,), (2,), (3,)]
        phase = 1
        for steps in stages:
            for number in range(self.iterations):
                batch, gradients = rounds[number % len(rounds)]
                chosen = (phase,) if self.switching and self.loop == "single" else steps
                first, second = state.step(batch, gradients, torch.tensor(float(number + 1)), chosen)
                if (phase == 1 and float(first) < 1e-9) or (phase == 2 and float(second) < 5e-9):
                    phase += 1
        x = observed.nets(0).parts.join([part.clamp(0, 1) for part in state.x]).detach().cpu()
        labels = state.logits.argmax(1).cpu()
        of, rows = origins(observed)
        unsure = [torch.zeros(len(some), dtype=torch.bool) for some in rows]
        notes = (*observed.notes, f"{self.loop} loop, {self.iterations} rounds")
        return Inputs(
            of,
            [x[some] for some in rows],
            unsure,
            torch.ones(len(of), dtype=torch.bool),
            [labels[some] for some in rows],
            notes,
        )
