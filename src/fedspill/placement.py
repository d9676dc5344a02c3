"""Where tensors live, and the precision there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

CPU = "cpu"


def moved(value: Any, device: str) -> Any:
    """The same on that device: tensors, models, and what holds them."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device)  # a module moves in place, and its owner may need it where it was
    if isinstance(value, Mapping):
        return {key: moved(one, device) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        there = {name: moved(one, device) for name, one in held.items()}
        return replace(value, **{name: one for name, one in there.items() if one is not held[name]})
    return value


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on that device; nobody waits for it to get there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def on_gpu(tensors: Mapping[str, Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors.values())


def brought_back(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU. From a GPU in one piece for each type of number: every transfer is waited for by itself."""
    if not on_gpu(tensors):
        return {name: tensor.to(CPU, copy=True) for name, tensor in tensors.items()}
    return in_one_piece(tensors, CPU)


def in_one_piece(tensors: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    """The tensors on another device, by one transfer for each type of number."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault(tensor.dtype, []).append(name)
    there: dict[str, Tensor] = {}
    for names in kinds.values():
        pieces = torch.cat([tensors[name].detach().flatten() for name in names]).to(device)
        parts = torch.split(pieces, [tensors[name].numel() for name in names])
        there |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: there[name] for name in tensors}


def use_full_precision() -> None:
    """No TF32: rounded to ten bits, the gradients of a client's convolutions cost CAFE 27 dB."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
