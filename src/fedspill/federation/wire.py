"""The wire: what a server checks before it lets an update into the sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedspill.federation.local import Tensors


def fault(tensors: Mapping[str, object], expected: Mapping[str, Tensor]) -> str | None:
    """Why an update must be left out, or None. Shapes must be equal, not merely broadcastable."""
    if not tensors:
        return "is empty"
    for name in expected:
        if name not in tensors:
            return f"lacks tensor {name!r}"
    for name, tensor in tensors.items():
        if name not in expected:
            return f"has an unknown tensor {name!r}"
        if not isinstance(tensor, Tensor):
            return f"has something other than a tensor at {name!r}"
        if tensor.shape != expected[name].shape:
            return f"has shape {tuple(tensor.shape)} at {name!r}, expected {tuple(expected[name].shape)}"
        if tensor.dtype != expected[name].dtype:
            return f"has type {tensor.dtype} at {name!r}, expected {expected[name].dtype}"
    return _value_fault({name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)})


def _value_fault(tensors: Tensors) -> str | None:
    """One norm per tensor finds NaN, infinities and values whose squares overflow in a single pass."""
    norms = [float(norm) for norm in torch.stack(torch._foreach_norm(list(tensors.values()))).tolist()]
    for (name, tensor), norm in zip(tensors.items(), norms, strict=True):
        if not math.isfinite(norm):
            if bool(torch.isnan(tensor).any()):
                return f"has NaN at {name!r}"
            return f"has an infinite value at {name!r}" if bool(torch.isinf(tensor).any()) else f"overflows at {name!r}"
    return "is all zero" if not any(norms) else None


@torch.no_grad()
def weighted_sum(updates: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """The sum of weight times update, in place on one copy."""
    total = {name: tensor * weights[0] for name, tensor in updates[0].items()}
    for update, weight in zip(updates[1:], weights[1:], strict=True):
        torch._foreach_add_(list(total.values()), [update[name] for name in total], alpha=weight)
    return total
