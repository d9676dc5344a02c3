"""SAPAG (Wang et al. 2020): gradient matching under a Gaussian kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.leaks.inputs.gradient_matching import GradientMatching
from fedspill.leaks.inputs.search.recipes import sapag
from fedspill.leaks.inputs.search.search import Recipe


@final
@dataclass(frozen=True)
class Sapag(GradientMatching):
    """Matches gradients tensor by tensor, each by 1 - exp(-distance / variance).

    With the sum of squares as distance the kernel is flat wherever a search starts, and nothing moves: that is the
    reading with `per_entry` false, which CAFE's comparison has. The default takes the mean square.
    """

    name: ClassVar[str] = "sapag"
    title: ClassVar[str] = "Self-adaptive privacy attack from gradients"
    paper: ClassVar[str] = "Wang et al., SAPAG: A Self-Adaptive Privacy Attack From Gradients, 2020"

    steps: int = 600
    per_entry: bool = True
    lr: float = 0.03

    def recipe(self, model: nn.Module) -> Recipe:
        return sapag(self.steps, per_entry=self.per_entry, lr=self.lr)
