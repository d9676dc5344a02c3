"""The loss of every record at one model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.training import is_single

AT_ONCE = 256  # records in one forward pass
_MOST = 1e6  # a loss that overflowed is as bad as any


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(records,) cross-entropy of each record; for a single logit the binary one."""
    if is_single(logits):
        return functional.binary_cross_entropy_with_logits(logits.flatten(), labels.to(logits.dtype), reduction="none")
    return functional.cross_entropy(logits, labels, reduction="none")


@torch.no_grad()
def record_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(records,) in float64, finite."""
    parts = [
        losses(model(some), labels)
        for some, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
    ]
    return torch.cat(parts).double().nan_to_num(_MOST, _MOST, 0.0).clamp(max=_MOST)
