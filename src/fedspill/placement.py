"""Where tensors live: one device for all that an attack is handed, and full precision on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

CPU = "cpu"


def moved(value: Any, device: str) -> Any:
    """The same on that device: tensors, what holds tensors, and the models that a factory makes."""
    if isinstance(value, Tensor | nn.Module):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(one, device) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        there = {name: moved(one, device) for name, one in held.items()}
        return replace(value, **{name: one for name, one in there.items() if one is not held[name]})
    return value


def made_on(factory: Callable[[], nn.Module], device: str) -> Callable[[], nn.Module]:
    """A factory whose models are there."""
    return lambda: factory().to(device)


def use_full_precision() -> None:
    """No TF32: rounded to ten bits, the gradients of a client's convolutions cost CAFE 27 dB."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
