"""torchvision's networks, also where its compiled part cannot load (a CUDA build of it beside torch for the CPU).

There `import torchvision` stops with "operator torchvision::nms does not exist": it describes two operators that only
the compiled part declares. Declaring their signatures first is enough; no network calls them. Where torchvision
imports as it is, nothing is declared.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedspill.errors import UsageError


def torchvision_models() -> Any:
    """The module torchvision.models."""
    try:
        return _import().models
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise UsageError(
            "This model is torchvision's, which is not installed.", remedy="Install the extra: fedspill[vision]."
        ) from None


def adapted(network: nn.Module, *, channels: int, last_bias: bool) -> nn.Module:
    """The same network for images of that many channels, without work in place, and with or without its last bias."""
    layers = dict(network.named_modules())
    if channels != 3:
        name, conv = next((name, layer) for name, layer in layers.items() if isinstance(layer, nn.Conv2d))
        _put(network, name, _of_channels(conv, channels))
    if not last_bias:
        head = [layer for layer in layers.values() if isinstance(layer, nn.Linear)][-1]
        head.register_parameter("bias", None)
    for layer in layers.values():
        if isinstance(layer, nn.ReLU | nn.SiLU | nn.Dropout):
            layer.inplace = False
    return network


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error) or "does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declare_operators()
    return importlib.import_module("torchvision")


@cache
def _declare_operators() -> torch.library.Library:
    """The two signatures; they last as long as the library object, so it is kept."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        signature = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(signature)  # type: ignore[no-untyped-call]
    return library


def _put(network: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    network.get_submodule(parent).add_module(child, layer)


def _of_channels(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A convolution like `conv` for another number of input channels, drawn by Kaiming's rule."""
    assert conv.groups == 1
    assert isinstance(conv.padding, tuple)
    kernel, stride, padding = ((pair[0], pair[1]) for pair in (conv.kernel_size, conv.stride, conv.padding))
    fresh = nn.Conv2d(channels, conv.out_channels, kernel, stride, padding, bias=conv.bias is not None)
    nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
    if fresh.bias is not None:
        nn.init.zeros_(fresh.bias)
    return fresh
