"""Inverting Gradients (Geiping et al. 2020): cosine distance and total variation, minimised by signed Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.leaks.inputs.gradient_matching import GradientMatching
from fedspill.leaks.inputs.search.recipes import inverting_gradients
from fedspill.leaks.inputs.search.search import Recipe


@final
@dataclass(frozen=True)
class InvertingGradients(GradientMatching):
    """Matches the direction of the gradient only; labels come from a label attack.

    Published with 24,000 steps (4,800 in the authors' repository) and a variation weight from 1e-6 to 0.2 by network;
    an audit makes fewer steps at 1e-4. Paper 003 uses 0.2 and 24,000, which its Table 10 sets.
    """

    name: ClassVar[str] = "inverting-gradients"
    title: ClassVar[str] = "Inverting gradients by cosine distance"
    paper: ClassVar[str] = "Geiping et al., Inverting Gradients, 2020"

    steps: int = 600
    variation: float = 1e-4
    signed: bool = True
    restarts: int = 1

    def recipe(self, model: nn.Module) -> Recipe:
        return inverting_gradients(self.steps, self.variation, signed=self.signed, restarts=self.restarts)
