"""What planted attacks have in common: the control that they must pass, and how findings become a guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedspill.leaks.inputs.guess import Inputs
from fedspill.planting.read_batches import PlantedBatch

# Every client sends the gradient of a few digits out of many, so that no two rounds have much in common.
PLANT_CONTROL: Mapping[str, Any] = MappingProxyType(
    {
        "data": "digits",
        "model": {"name": "mlp", "widths": [64]},
        "partition": "iid",
        "federation": {"clients": 2, "rounds": 2},
        "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 4},
    }
)


def guess_of_batches(
    batches: Sequence[PlantedBatch],
    samples: Sequence[Tensor],
    certified: Sequence[Tensor],
    labels: Sequence[Tensor] | None = None,
    notes: Sequence[str] = (),
) -> Inputs:
    """One answer for each batch, in that order; all of them are answered, if only by nothing."""
    return Inputs(
        [batch.of for batch in batches],
        [found.float() for found in samples],
        certified,
        torch.ones(len(batches), dtype=torch.bool),
        labels,
        tuple(notes),
    )


def vouches_for_none(samples: Tensor) -> Tensor:
    return torch.zeros(len(samples), dtype=torch.bool)
