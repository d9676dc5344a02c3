"""Which of two readings to believe more, by clients that come back: they hold what they held before.

A reading that tells clients apart, and says the same of a client each time, follows their labels. One that changes from
round to round follows the model. The ratio of both spreads needs no truth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FEWEST_CLIENTS = 3  # that came back: a spread among fewer says nothing (convention)


def trust(shares: Tensor, senders: Sequence[str]) -> float | None:
    """Variance of shares (origins, classes) between clients over that within them; None where too few come back."""
    rows: dict[str, list[int]] = {}
    for row, sender in enumerate(senders):
        rows.setdefault(sender, []).append(row)
    returning = [shares[own] for own in rows.values() if len(own) > 1]
    if len(returning) < FEWEST_CLIENTS:
        return None
    within = torch.stack([own.var(0).sum() for own in returning]).mean()
    between = torch.stack([own.mean(0) for own in returning]).var(0).sum()
    return float(between / within.clamp_min(1e-12))


def weight_of_first(first: Tensor, second: Tensor, senders: Sequence[str]) -> float:
    """How much of the first of two readings (origins, classes) of shares to take; half where nothing tells."""
    ratios = [trust(shares, senders) for shares in (first, second)]
    if ratios[0] is None or ratios[1] is None:
        return 0.5
    return ratios[0] / max(ratios[0] + ratios[1], 1e-12)
