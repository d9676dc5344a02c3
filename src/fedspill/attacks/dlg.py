"""DLG (Zhu et al., Deep Leakage from Gradients, 2019) and iDLG (Zhao et al. 2020): gradient matching by L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.attacks.inversion.matching import GradientMatching
from fedspill.attacks.inversion.recipes import dlg
from fedspill.attacks.inversion.search import Recipe


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
