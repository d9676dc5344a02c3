"""GradInversion (Yin et al. 2021): a group of restarts held together, with feature statistics as a prior."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from fedspill.leaks.inputs.gradient_matching import GradientMatching
from fedspill.leaks.inputs.search.recipes import grad_inversion
from fedspill.leaks.inputs.search.search import Recipe


@final
@dataclass(frozen=True)
class GradInversion(GradientMatching):
    """Restarts are drawn to their mean, and features to the batch-norm statistics where the network has any.

    These are the batch's own where the client's buffers tell them (Huang et al. 2021), else the network's running ones.
    Published with 20,000 steps; an audit makes fewer. `group` 1 leaves group consistency out, `batch_norm` false the
    statistics.
    """

    name: ClassVar[str] = "grad-inversion"
    title: ClassVar[str] = "See through gradients: batch-norm statistics and group consistency"
    paper: ClassVar[str] = "Yin et al., See through Gradients: Image Batch Recovery via GradInversion, 2021"

    steps: int = 400
    group: int = 3
    batch_norm: bool = True

    def recipe(self, model: nn.Module) -> Recipe:
        return grad_inversion(copy.deepcopy(model).float(), self.steps, group=self.group, batch_norm=self.batch_norm)
