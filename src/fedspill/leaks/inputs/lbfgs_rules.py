"""What both L-BFGS methods of this leak have in common: which pairs they keep and which decrease is enough.

There are two methods because their line searches differ: `search.optimizers.Lbfgs` makes the moves of the published
attack DLG, which has none (a guarded variant halves the step of a restart within one move), and
`vertical.batched_lbfgs.minimise` takes one trial point of thousands of independent rows at a time, so that a GPU can
replay it as a recorded graph.
"""

from __future__ import annotations

from torch import Tensor

SUFFICIENT_DECREASE = 1e-4  # Armijo: the share of the decrease promised by the slope that a step must bring


def has_curvature(product: Tensor, move: Tensor, change: Tensor) -> Tensor:
    """Whether pairs of a move (..., n) and the change of the gradient along it (..., n) show positive curvature.

    `product` (...) is their inner product. The bound is relative, since gradients of gradients may be tiny: an absolute
    one would discard every pair of such a search.
    """
    kept: Tensor = product > 1e-10 * move.norm(dim=-1) * change.norm(dim=-1)
    return kept
