"""Thresholds from a client's own benign history: the bound that the next benign value passes with a stated chance.

A normal model with a conjugate prior: with little history the prior decides and the bound is wide, with much of it the
client's own rounds do. That is the schedule for early rounds. No attack enters anywhere.
"""

from __future__ import annotations

import torch
from scipy import special
from torch import Tensor

# Where benign federations lie before anything is known of this one: middle and spread of the four statistics, from
# development runs on other seeds (docs/design/active.md), worth this many rounds.
PRIOR_MIDDLE = torch.tensor([1.0, 1.3, -0.05, 0.1], dtype=torch.float64)
PRIOR_SPREAD = torch.tensor([0.7, 0.6, 0.25, 0.1], dtype=torch.float64)
PRIOR_ROUNDS = 2.0
PRIOR_FREEDOM = 10.0


def bounds(history: Tensor, false_alarms: float) -> Tensor:
    """(statistics,) what benign values exceed with chance `false_alarms` in all; history (rounds, statistics)."""
    known = ~history.isnan()
    n = known.sum(0).double()
    values = torch.where(known, history, 0.0)
    mean = torch.where(n > 0, values.sum(0) / n.clamp(min=1), PRIOR_MIDDLE)
    squares = (torch.where(known, history - mean, 0.0) ** 2).sum(0)
    weight = PRIOR_ROUNDS + n
    middle = (PRIOR_ROUNDS * PRIOR_MIDDLE + n * mean) / weight
    freedom = PRIOR_FREEDOM + n
    shift = PRIOR_ROUNDS * n / weight * (mean - PRIOR_MIDDLE) ** 2
    spread = ((PRIOR_FREEDOM * PRIOR_SPREAD**2 + squares + shift) / freedom * (1 + 1 / weight)).sqrt()
    each = false_alarms / len(PRIOR_MIDDLE)
    return middle + torch.from_numpy(special.stdtrit(freedom.numpy(), 1 - each)) * spread
