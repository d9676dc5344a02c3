"""LoRA (Hu et al. 2022): frozen weights, and beside some of them a trained product of two thin matrices.

Tensors are called what the package peft calls them, so that recordings of either read alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedspill.errors import UsageError

ADAPTER = "default"


class LoraLinear(nn.Module):
    """base_layer(x) + alpha / r * B A x; B is zero at first, so that nothing changes."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({ADAPTER: nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({ADAPTER: nn.Linear(rank, base.out_features, bias=False)})
        nn.init.kaiming_uniform_(self.down.weight, a=5**0.5)
        nn.init.zeros_(self.up.weight)
        self.scaling = alpha / rank

    @property
    def down(self) -> nn.Linear:
        layer = self.lora_A[ADAPTER]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def up(self) -> nn.Linear:
        layer = self.lora_B[ADAPTER]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.scaling * self.up(self.down(x))
        return out


def add_lora(network: nn.Module, rank: int, alpha: float, targets: Sequence[str], keep: Sequence[str]) -> None:
    """Freezes the network but for `keep`, and puts adapters on the linear layers whose last name is a target."""
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    found = [
        (holder, name)
        for holder in list(network.modules())
        for name, child in list(holder.named_children())
        if name in targets and isinstance(child, nn.Linear)
    ]
    if not found:
        raise UsageError(f"LoRA finds no linear layer called {' or '.join(targets)}.")
    for holder, name in found:
        base = getattr(holder, name)
        setattr(holder, name, LoraLinear(base, rank, alpha))
    for name, parameter in network.named_parameters():
        if any(name.startswith(f"{kept}.") for kept in keep):
            parameter.requires_grad_(True)


def linear_weight(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer, what its adapter adds included."""
    if isinstance(layer, LoraLinear):
        added = layer.scaling * layer.up.weight.detach() @ layer.down.weight.detach()
        bias = layer.base_layer.bias
        return layer.base_layer.weight.detach() + added, None if bias is None else bias.detach()
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach(), None if layer.bias is None else torch.clone(layer.bias.detach())
