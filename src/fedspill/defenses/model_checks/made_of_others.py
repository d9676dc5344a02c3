"""Which units fire for what other units make up together, but for few samples.

A server that plants must know, before it sees any sample, which sums of rows will cancel. Such a sum is a unit whose
firing is a sum of others', each times some number, for nearly all inputs that there are, not for those of one batch
alone. How many units it takes, two or ten, makes no difference here: what is left of a unit beside all others at once
is a least squares fit. A batch has often fewer samples than there are units, and would fit anything; so the fit is to
many more inputs, made of the batch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

MANY, FOR_EACH = 1024, 4  # inputs at least, and for each unit: fewer fit whom units fire for by chance
_RIDGE = 2.5e-4  # of the inputs: units that fire alike have one fit


def inputs_for(units: int) -> int:
    """How many inputs tell which of so many units others make up."""
    return max(MANY, FOR_EACH * units)


def made_of_others(fires: Tensor, more: Tensor, needed: float) -> Tensor:
    """(units,) whether fewer than `needed` samples tell whom a unit fires for from what others make up.

    fires (samples, units) are zeros and ones, and so are those of other inputs, more (inputs, units). What is left of
    a unit, r, has (sum r^2)^2 / sum r^4 samples. It also has few where, by all inputs, what so many samples leave is
    worth less than one of them: many units that miss others by a little each fit a part of what is left.
    """
    samples = len(fires)
    every = torch.cat([fires, more])
    every -= every.mean(0)
    fit = every.T @ every
    fit.diagonal().add_(_RIDGE * len(every))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(fit))
    left = (every[:samples] @ inverse).div_(inverse.diagonal()).square_()
    few = left.sum(0).square_() < needed * left.square_().sum(0)
    return few | (inverse.diagonal() * len(every) > samples)  # its inverse is the sum of r^2 over all inputs
