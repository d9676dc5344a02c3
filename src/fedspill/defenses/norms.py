"""The norm of what a client sends, as clipping measures it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """The norm of all tensors together."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors.values())))))
