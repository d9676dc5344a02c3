"""The Jacobian of a function of few unknowns, by reverse mode twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def slopes(function: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    """(outputs, unknowns): reverse mode gives the transpose times u, whose derivative by u is the Jacobian."""
    with torch.enable_grad():
        q = q.detach().requires_grad_()
        value = function(q)
        dual = torch.zeros_like(value, requires_grad=True)
        (back,) = torch.autograd.grad(value, [q], dual, create_graph=True)
        along = torch.eye(q.numel(), dtype=q.dtype).reshape(-1, *q.shape)
        (columns,) = torch.autograd.grad(back, [dual], along, is_grads_batched=True)
    return columns.T
