"""Records as a convolution sees them: at every place of an image it is a linear layer, on the patch around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.leaks.membership.passive.record_losses import AT_ONCE
from fedspill.leaks.membership.passive.sample_layers import LayerName

_MOST_PLACES = 16  # of an image: with more, a record is one of many in what a place saw
_WIDEST = 2400  # inputs, and
_MOST_NUMBERS = 5 * 10**7  # numbers in all: beyond, a round would take longer than some seconds


@dataclass(frozen=True, eq=False)
class RecordsAtPlaces:
    """What one convolution sees of each record, in float64."""

    name: LayerName
    inputs: Tensor  # (records, places, in), a constant 1 last where there is a bias


def records_at_places(model: nn.Module, x: Tensor) -> RecordsAtPlaces | None:
    """At the convolution with the most outputs that has few places; None where there is none, or too much to read."""
    found: dict[str, nn.Conv2d] = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and _is_plain(module)
    }
    if not found or len(x) == 0:
        return None
    x = x.to(next(model.parameters()).device)
    sample = _patches(model, found, x[:1])
    fitting = [name for name, seen in sample.items() if seen.shape[1] <= _MOST_PLACES]
    fitting = [name for name in fitting if len(x) * sample[name].numel() <= _MOST_NUMBERS]
    if not fitting:
        return None
    best = max(fitting, key=lambda name: len(found[name].weight))
    inputs = torch.cat([_patches(model, {best: found[best]}, some)[best] for some in torch.split(x, AT_ONCE)])
    bias = None if found[best].bias is None else f"{best}.bias"
    if bias is not None:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :, :1])], 2)
    return RecordsAtPlaces(LayerName(f"{best}.weight", bias), inputs)


def _is_plain(layer: nn.Conv2d) -> bool:
    """Whether patches are what `unfold` gives, and there are more numbers in them than the layer puts out."""
    inputs = layer.weight[0].numel()
    padded = isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"
    return padded and layer.groups == 1 and len(layer.weight) < inputs <= _WIDEST


@torch.no_grad()
def _patches(model: nn.Module, layers: dict[str, nn.Conv2d], x: Tensor) -> dict[str, Tensor]:
    """(records, places, in) of every layer that is used once, on images."""
    caught: dict[str, list[Tensor]] = {name: [] for name in layers}
    names: dict[nn.Module, str] = {module: name for name, module in layers.items()}

    def catch(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        caught[names[module]].append(inputs[0])

    handles = [module.register_forward_hook(catch) for module in layers.values()]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    for name, calls in caught.items():
        if len(calls) == 1 and calls[0].ndim == 4 and len(calls[0]) == len(x):
            layer = layers[name]
            assert isinstance(layer.padding, tuple)
            patches = functional.unfold(calls[0], layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            found[name] = patches.transpose(1, 2).double().nan_to_num()
    return found
