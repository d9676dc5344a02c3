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

_AT_ONCE = 64  # records whose gradients are held at once,
_NUMBERS_AT_ONCE = 1 << 26  # or as many as have so many numbers, of a large model at least one (conventions)


@dataclass(frozen=True, eq=False)
class GradientProducts:
    """Of each record's gradient: with each change, and with itself."""

    with_changes: Tensor  # (records, changes)
    squares: Tensor  # (records,)


def gradient_products(
    model: nn.Module, x: Tensor, y: Tensor, changes: Sequence[Mapping[str, Tensor]]
) -> GradientProducts:
    """In float64, on the CPU. Linear layers in factors, which is exact; the other parameters record by record."""
    products = torch.zeros(len(x), len(changes), dtype=torch.double)
    squares = torch.zeros(len(x), dtype=torch.double)
    rest = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad and name in changes[0]}
    for layer in records_at_layers(model, x, y):
        products += torch.stack([layer.products(change) for change in changes], 1).cpu()
        squares += layer.squares().cpu()
        for name in (layer.name.weight, layer.name.bias):
            rest.pop(name or "", None)
    if rest:
        x, y = (part.to(next(iter(rest.values())).device) for part in (x, y))
        many = min(_AT_ONCE, max(1, _NUMBERS_AT_ONCE // sum(tensor.numel() for tensor in rest.values())))
        for start in range(0, len(x), many):
            rows = slice(start, start + many)
            for name, own in _gradients(model, rest, x[rows], y[rows]).items():
                sent = [change[name].to(own.device).flatten() for change in changes]
                products[rows] += torch.stack([own @ one for one in sent], 1).double().cpu()
                squares[rows] += own.square().sum(1).double().cpu()
    return GradientProducts(products.nan_to_num(), squares.nan_to_num())


def _gradients(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """(records, numbers) each record's gradient by each of those parameters."""
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def loss(some: Mapping[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, {**state, **some}, (record[None],))
        return losses(model, logits, record[None], label[None]).sum()

    each = row_by_row(grad(loss), in_dims=(None, 0, 0))(dict(parameters), x, y)
    return {name: each[name].flatten(1) for name in parameters}
