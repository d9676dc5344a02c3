"""DLG (Zhu et al., Deep Leakage from Gradients, 2019): gradient matching by L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.leaks.inputs.gradient_matching import GradientMatching
from fedspill.leaks.inputs.search.recipes import dlg
from fedspill.leaks.inputs.search.search import Recipe


@final
@dataclass(frozen=True)
class DeepLeakage(GradientMatching):
    """Inputs and soft labels together, squared distance, L-BFGS without a line search.

    Made for one step on few samples with a twice differentiable network; fails from bad starts and on larger batches.
    The released code makes 300 times 20 moves; an audit makes fewer.
    """

    name: ClassVar[str] = "dlg"
    title: ClassVar[str] = "Deep leakage from gradients"
    paper: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, 2019"

    labels_from: str = ""
    steps: int = 400

    def recipe(self, model: nn.Module) -> Recipe:
        return dlg(self.steps)
