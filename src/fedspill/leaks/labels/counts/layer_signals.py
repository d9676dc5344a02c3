"""Layer signals: how the gradient of every linear layer carries what the last bias's gradient says about labels.

With beta_i the summed derivative of the loss by logit i, the gradient of any parameter is sum_i beta_i dz_i/dparameter,
as far as samples are alike. Of a linear layer with inputs a and back-propagated signals d_i = dz_i/d(output), that is
sum_i beta_i d_i a^T. The adversary measures a and d_i on inputs of its own, and reads beta off by least squares. Where
noise lies on every coordinate, all layers together know beta much better than the bias alone; where the last layer is
withheld, the others still know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedspill.leaks.labels.counts.constants import COUNTS


@dataclass(frozen=True, eq=False)
class Signals:
    """One linear layer, on the adversary's inputs."""

    weight: str
    bias: str | None
    features: Tensor  # (inputs, in)
    pushes: Tensor  # (inputs, classes, out): derivative of each logit by the layer's outputs

    def seen(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(inputs, classes): the inner product of a gradient with the one that a unit of beta would make."""
        moved = self.features @ tensors[self.weight].double().flatten(1).T
        if self.bias is not None:
            moved = moved + tensors[self.bias].double()
        return torch.einsum("nco,no->nc", self.pushes, moved)

    def overlap(self) -> Tensor:
        """(inputs, classes, classes): the mean layer gradient by one logit, times that of each input by another."""
        alike = self.features @ self.features.T + (0.0 if self.bias is None else 1.0)  # (inputs, inputs)
        mixed = torch.einsum("mn,mco->nco", alike, self.pushes) / len(alike)
        return torch.einsum("nco,ndo->ncd", mixed, self.pushes)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads beta off the layers that `signals` names, with what it gets wrong."""

    signals: tuple[Signals, ...]
    gram: Tensor  # (classes, classes)
    own_spread: Tensor  # (classes,) relative variance of what one sample adds to its own class
    other_spread: Tensor  # (classes,) variance of what one sample adds to another class, relative to its own

    @staticmethod
    def of(signals: Sequence[Signals]) -> Reader | None:
        """None where there is nothing to read."""
        if not signals:
            return None
        overlap = torch.stack([layer.overlap() for layer in signals]).sum(0)
        gram = overlap.mean(0)
        gram = gram + 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        answers = torch.linalg.solve(gram, overlap)  # what each input's unit of beta is read as
        centred = (answers - torch.eye(len(gram), dtype=gram.dtype)).square().mean(0)
        own = centred.diagonal()
        other = (centred.sum(1) - own) / max(len(gram) - 1, 1)
        return Reader(tuple(signals), gram, own, other)

    def beta(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(classes,) from gradients by name."""
        seen = torch.stack([layer.seen(tensors).mean(0) for layer in self.signals]).sum(0)
        found: Tensor = torch.linalg.solve(self.gram, seen)
        return found

    def noise_gain(self) -> Tensor:
        """(classes,) variance of beta for unit variance of every coordinate."""
        gain: Tensor = torch.linalg.inv(self.gram).diagonal().clamp_min(0)
        return gain


def linear_signals(model: nn.Module, inputs: Tensor, classes: int) -> list[Signals]:
    """The signals of every linear layer that sees one vector per sample, first layer first."""
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    caught: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def catch(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if output.ndim == 2:
            caught[module] = (given[0], output)

    handles = [module.register_forward_hook(catch) for module in names]
    try:
        with torch.enable_grad():
            device = next(model.parameters()).device
            logits = model(inputs[: COUNTS.signal_inputs].to(device))
            layers = [module for module in names if module in caught and caught[module][1].requires_grad]
            outputs = [caught[module][1] for module in layers]
            if logits.ndim != 2 or logits.shape[1] != classes or not outputs:
                return []
            pushes: list[list[Tensor]] = [[] for _ in outputs]
            for index in range(classes):
                found = torch.autograd.grad(logits[:, index].sum(), outputs, retain_graph=True, allow_unused=True)
                for place, (output, push) in enumerate(zip(outputs, found, strict=True)):
                    pushes[place].append(torch.zeros_like(output) if push is None else push)
    finally:
        for handle in handles:
            handle.remove()
    return [
        Signals(
            f"{names[module]}.weight" if names[module] else "weight",
            (f"{names[module]}.bias" if names[module] else "bias") if module.bias is not None else None,
            caught[module][0].detach().double().cpu(),
            torch.stack(pushes[place], 1).detach().double().cpu(),
        )
        for place, module in enumerate(layers)
    ]
