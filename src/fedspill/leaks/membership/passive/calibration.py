"""How surprising a score is for a record that nobody trained on: tail probabilities from left-out auxiliary records."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TAIL = 0.1  # share of auxiliary records by which the tail is measured
_COUNTED = 3  # outsiders that must score as high for a rate to be counted: the highest one or two are chance


def surprise(scores: Tensor, outsiders: Tensor) -> Tensor:
    """(records, senders) minus log10 of the chance that a record nobody trained on scores as high.

    outsiders (auxiliary, senders) are scores of such records, of each sender by itself: what is unusual for one client
    may be usual for another. Down to three in (auxiliary + 1) the chance is counted, which holds for any distribution
    as long as auxiliary records are like those asked about. Beyond the third largest, an exponential tail goes on.
    """
    columns = [
        torch.from_numpy(_of_one(scores[:, k].double().numpy(), outsiders[:, k].double().numpy()))
        for k in range(scores.shape[1])
    ]
    return torch.stack(columns, 1)


def counted_rate(outsiders: int) -> float:
    """The lowest rate of false alarms that so many auxiliary records can vouch for."""
    return min(_COUNTED, outsiders) / (outsiders + 1)


def _of_one(scores: NDArray[np.float64], outsiders: NDArray[np.float64]) -> NDArray[np.float64]:
    m = len(outsiders)
    ranked = np.sort(outsiders)
    known, first = np.unique(ranked, return_index=True)
    # At a known score, so many outsiders are as high or higher; of equal ones each counts for all.
    heights = -np.log10((m - first) / (m + 1.0))
    spread = max(float(known[-1] - known[0]), 1e-12)
    last = ranked[-min(_COUNTED, m)]  # the highest score at which a rate is counted
    top = ranked[-min(m, max(_COUNTED + 2, int(_TAIL * m))) :]
    excess = max(float((top - top[0]).sum()) / max(len(top) - 1, 1), 1e-9 * spread)
    inside = np.interp(scores, known, heights)
    beyond = heights[np.searchsorted(known, last)] + np.maximum(scores - last, 0) / excess / np.log(10)
    below = heights[0] + 1e-3 * np.minimum(scores - known[0], 0) / spread  # keeps the order, is never an alarm
    found: NDArray[np.float64] = np.where(scores > last, beyond, np.where(scores < known[0], below, inside))
    return found
