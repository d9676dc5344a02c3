"""What a server checks before it lets a client's update into the sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedspill.messages import Message
from fedspill.training import Tensors

MOST_EXAMPLES = 1 << 53
# The types that a trace can hold; a message of any other type is noted as an event and not recorded.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def envelope_fault(message: Message, honest: Message) -> str | None:
    """Why a message is not to be believed, or None: its round, sender, receiver and kind must be those of `honest`."""
    for part in ("round", "sender", "receiver", "kind"):
        claimed, known = getattr(message, part), getattr(honest, part)
        if claimed != known:
            return f"claims {part} {_quoted(claimed)}, which is {known!r}"
    examples = message.info.get("examples")
    if type(examples) is not int or not 1 <= examples <= MOST_EXAMPLES:
        return f"says that it comes from {_quoted(examples)} examples"
    for name, value in message.info.items():
        if not _is_text(name) or not (_is_text(value) or _is_number(value)):
            return f"says {_quoted(value)} of {_quoted(name)}"
    return None


def is_recordable(tensors: Mapping[str, object]) -> bool:
    """Whether these can be written to a trace, whatever their shapes and values: named tensors of plain types."""
    return all(_is_text(name) and _is_plain(tensor) for name, tensor in tensors.items())


def update_fault(tensors: Mapping[str, object], expected: Mapping[str, Tensor]) -> str | None:
    """Why an update must be left out of the sum, or None. Shapes must be equal, not merely broadcastable."""
    return update_faults([tensors], expected)[0]


def update_faults(updates: Sequence[Mapping[str, object]], expected: Mapping[str, Tensor]) -> list[str | None]:
    """The same of several updates, whose values are looked at together: a GPU is waited for once."""
    faults = [_shape_fault(tensors, expected) for tensors in updates]
    sound = [place for place, fault in enumerate(faults) if fault is None]
    values = [{name: t for name, t in updates[place].items() if isinstance(t, Tensor)} for place in sound]
    for place, fault in zip(sound, _value_faults(values), strict=True):
        faults[place] = fault
    return faults


def _shape_fault(tensors: Mapping[str, object], expected: Mapping[str, Tensor]) -> str | None:
    if not tensors:
        return "is empty"
    for name in expected:
        if name not in tensors:
            return f"lacks tensor {name!r}"
    for name, tensor in tensors.items():
        if name not in expected:
            return f"has an unknown tensor {_quoted(name)}"
        if not _is_plain(tensor):
            return f"has something other than a plain tensor at {name!r}"
        assert isinstance(tensor, Tensor)
        if tensor.shape != expected[name].shape:
            return f"has shape {tuple(tensor.shape)} at {name!r}, expected {tuple(expected[name].shape)}"
        if tensor.dtype != expected[name].dtype:
            return f"has type {tensor.dtype} at {name!r}, expected {expected[name].dtype}"
    return None


def _is_plain(tensor: object) -> bool:
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return tensor.dtype in _FLOATS + _WHOLE


def _is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can write, which lone surrogates are not."""
    return isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= MOST_EXAMPLES


def _quoted(value: object) -> str:
    """What a client sent, quoted and cut to one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _value_faults(updates: Sequence[Tensors]) -> list[str | None]:
    """One norm per tensor finds NaN, infinities and values whose squares overflow in a single pass."""
    # Counters are whole numbers and always sound.
    floats = [{name: tensor for name, tensor in each.items() if tensor.is_floating_point()} for each in updates]
    everything = [tensor for each in floats for tensor in each.values()]
    norms = iter(torch.stack(torch._foreach_norm(everything)).tolist() if everything else [])
    return [_value_fault(each, [float(next(norms)) for _ in each]) for each in floats]


def _value_fault(tensors: Tensors, norms: Sequence[float]) -> str | None:
    if not tensors:
        return None
    for (name, tensor), norm in zip(tensors.items(), norms, strict=True):
        if not math.isfinite(norm):
            if bool(torch.isnan(tensor).any()):
                return f"has NaN at {name!r}"
            return f"has an infinite value at {name!r}" if bool(torch.isinf(tensor).any()) else f"overflows at {name!r}"
    return "is all zero" if not any(norms) else None
