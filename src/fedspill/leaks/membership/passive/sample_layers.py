"""Gradients of single records in factors: at a linear layer a record's gradient is its signal times its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.leaks.membership.passive.record_losses import AT_ONCE, losses


@dataclass(frozen=True)
class LayerName:
    """Where the numbers of a linear layer, or of a convolution, are in a message."""

    weight: str
    bias: str | None

    def matrix(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """(out, in + 1) of a message, or (out, in) without a bias."""
        weight = tensors[self.weight].to(device).double().flatten(1)
        if self.bias is None:
            return weight
        return torch.cat([weight, tensors[self.bias].to(device).double()[:, None]], 1)


@dataclass(frozen=True, eq=False)
class RecordsAtLayer:
    """Records as one layer sees them, in float64, where the model is."""

    name: LayerName
    inputs: Tensor  # (records, in + 1), a constant 1 last where there is a bias
    signals: Tensor  # (records, out) derivative of the record's loss by the layer's output
    raw: bool  # whether the inputs are the records themselves, whatever the model is

    def products(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(records,) inner product of each record's gradient with a message."""
        return ((self.signals @ self.matrix(tensors)) * self.inputs).sum(1)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """What a message says of this layer, beside the records."""
        return self.name.matrix(tensors, self.inputs.device)

    def squares(self) -> Tensor:
        """(records,) square norm of each record's gradient."""
        return self.inputs.square().sum(1) * self.signals.square().sum(1)

    def gram(self, others: RecordsAtLayer) -> Tensor:
        """(records, others) inner products of gradients."""
        return (self.inputs @ others.inputs.T) * (self.signals @ others.signals.T)


def records_at_layers(
    model: nn.Module, x: Tensor, y: Tensor, *, signals: bool = True, widest: int | None = None
) -> list[RecordsAtLayer]:
    """Every linear layer that sees one vector per record, in the model's order; without `signals` these are empty.

    Layers of more than `widest` inputs, their constant one included, are left out.
    """
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    layers = {
        module: _name(name, module)
        for name, module in linear
        if widest is None or module.in_features + (module.bias is not None) <= widest
    }
    x, y = (part.to(next(model.parameters()).device) for part in (x, y))
    parts = [
        _captured(model, list(layers), some, labels, signals)
        for some, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
    ]
    found = []
    for layer, name in layers.items():
        if not all(layer in part for part in parts):
            continue
        inputs = torch.cat([part[layer][0] for part in parts])
        flat = x.flatten(1)
        raw = inputs.shape == flat.shape and torch.equal(inputs, flat.double())
        if name.bias is not None:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        found.append(RecordsAtLayer(name, inputs, torch.cat([part[layer][1] for part in parts]), raw))
    return found


def _name(name: str, layer: nn.Linear) -> LayerName:
    prefix = f"{name}." if name else ""
    return LayerName(f"{prefix}weight", f"{prefix}bias" if layer.bias is not None else None)


def _captured(
    model: nn.Module, layers: list[nn.Linear], x: Tensor, y: Tensor, signals: bool
) -> dict[nn.Linear, tuple[Tensor, Tensor]]:
    """Inputs and signals of those layers that were used once, on one vector per record."""
    calls: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}

    def catch(module: nn.Linear, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls[module].append((inputs[0], output))

    handles = [layer.register_forward_hook(catch) for layer in layers]
    try:
        with torch.set_grad_enabled(signals):
            loss = losses(model, model(x), x, y).sum()
    finally:
        for handle in handles:
            handle.remove()
    used = {layer: call[0] for layer, call in calls.items() if len(call) == 1 and _is_table(call[0], len(x))}
    if not signals:
        return {
            layer: (ins.detach().double(), ins.new_zeros(len(x), 0, dtype=torch.double))
            for layer, (ins, _) in used.items()
        }
    used = {layer: call for layer, call in used.items() if call[1].requires_grad}  # not those of a frozen beginning
    outputs = [output for _, output in used.values()]
    given = torch.autograd.grad(loss, outputs, allow_unused=True) if outputs else ()
    return {
        layer: (inputs.detach().double().nan_to_num(), signal.double().nan_to_num())
        for (layer, (inputs, _)), signal in zip(used.items(), given, strict=True)
        if signal is not None
    }


def _is_table(call: tuple[Tensor, Tensor], records: int) -> bool:
    return all(tensor.ndim == 2 and len(tensor) == records for tensor in call)
