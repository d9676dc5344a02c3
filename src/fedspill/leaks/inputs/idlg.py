"""iDLG (Zhao et al. 2020): DLG with labels that are read off the last layer first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.leaks.inputs.gradient_matching import GradientMatching
from fedspill.leaks.inputs.search.recipes import dlg
from fedspill.leaks.inputs.search.search import Recipe


@final
@dataclass(frozen=True)
class ImprovedDeepLeakage(GradientMatching):
    """DLG with labels read off the last layer first; for more than one sample LLG stands in for its one-sample rule.

    The rule holds where the features of the last layer are not negative.
    """

    name: ClassVar[str] = "idlg"
    title: ClassVar[str] = "Improved deep leakage from gradients"
    paper: ClassVar[str] = "Zhao et al., iDLG: Improved Deep Leakage from Gradients, 2020"

    labels_from: str = "llg"
    steps: int = 400

    def recipe(self, model: nn.Module) -> Recipe:
        return dlg(self.steps)
