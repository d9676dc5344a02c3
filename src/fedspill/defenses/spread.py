"""What an update shows of noise and clipping: its norm, and the least spread of any of its tensors.

Noise can only widen what training does, so each tensor that was noised spreads at least as far as the noise. A tensor
that spreads less was not noised: the test refutes a claim, and never confirms more than "not refuted".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedspill.messages import Message

_NORMAL = 0.6745  # the median absolute deviation of a unit normal
_ENOUGH = 64  # coordinates from which a spread is worth something


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """The norm of all tensors together."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors.values())))))


def least_spread(message: Message) -> tuple[float, str]:
    """The smallest robust standard deviation of any large enough tensor, and its name; all together if none is."""
    spreads = {
        name: float(tensor.abs().flatten().median()) / _NORMAL
        for name, tensor in message.tensors.items()
        if tensor.numel() >= _ENOUGH
    }
    if not spreads:
        joined = torch.cat([tensor.flatten() for tensor in message.tensors.values()])
        return float(joined.square().mean().sqrt()), "all tensors"
    name = min(spreads, key=lambda key: spreads[key])
    return spreads[name], name
