"""Cosines between the gradient of a sample and those of known samples, as near in time as there are: models move."""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.leaks.sample_labels.received.gradients import ReceivedGradients, unit_rows


def cosines(received: ReceivedGradients, use: int, known: Tensor) -> Tensor:
    """(samples, known) for one use of every sample and the use of each known sample that is nearest in rounds."""
    rows, when = unit_rows(received.visits[use]), received.when[use]
    found = torch.zeros(len(rows), len(known), dtype=torch.float64)
    far = torch.iinfo(torch.int64).max
    for column, sample in enumerate(known.tolist()):
        there = received.seen[:, sample]
        rounds = torch.where(there, received.when[:, sample], far)
        distance = (when[:, None] - rounds[None]).abs()
        distance[:, ~there] = far
        own = unit_rows(received.visits[:, sample])[distance.argmin(1)]
        found[:, column] = (rows * own).sum(1)
    return found
