"""Inner products of every record's gradient, over all parameters, with what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedspill.leaks.membership.passive.record_losses import losses
from fedspill.leaks.membership.passive.sample_layers import records_at_layers
from fedspill.observe.row_by_row import row_by_row

_AT_ONCE = 64  # records whose gradients are held at once


@dataclass(frozen=True, eq=False)
class GradientProducts:
    """Of each record's gradient: with each change, and with itself."""

    with_changes: Tensor  # (records, changes)
    squares: Tensor  # (records,)


def gradient_products(
    model: nn.Module, x: Tensor, y: Tensor, changes: Sequence[Mapping[str, Tensor]]
) -> GradientProducts:
    """In float64. Linear layers in factors, which is exact; the other parameters record by record."""
    products = torch.zeros(len(x), len(changes), dtype=torch.double)
    squares = torch.zeros(len(x), dtype=torch.double)
    rest = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad and name in changes[0]}
    for layer in records_at_layers(model, x, y):
        products += torch.stack([layer.products(change) for change in changes], 1)
        squares += layer.squares()
        for name in (layer.name.weight, layer.name.bias):
            rest.pop(name or "", None)
    if rest:
        moved = torch.stack([torch.cat([change[name].flatten() for name in rest]) for change in changes])
        for start in range(0, len(x), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            own = _gradients(model, rest, x[rows], y[rows])
            products[rows] += (own @ moved.T).double()
            squares[rows] += own.square().sum(1).double()
    return GradientProducts(products.nan_to_num(), squares.nan_to_num())


def _gradients(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """(records, numbers) each record's gradient by those parameters."""
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def loss(some: Mapping[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, {**state, **some}, (record[None],))
        return losses(logits, label[None]).sum()

    each = row_by_row(grad(loss), in_dims=(None, 0, 0))(dict(parameters), x, y)
    return torch.cat([each[name].flatten(1) for name in parameters], 1)
