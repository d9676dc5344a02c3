"""Frames: JSON and bytes through a pipe, each behind its length; what comes from code of others is checked."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.plain_text import one_line
from fedspill.trace import Origin

LENGTHS = struct.Struct("<QQ")  # of the JSON and of the bytes behind it
MOST_JSON = 64 << 20
MOST_BYTES = 8 << 30  # the memory limit strikes earlier; this only refuses nonsense before it is read
MALFORMED = "Its process gave a malformed answer."


@dataclass(frozen=True)
class Frame:
    """One message between the two processes."""

    head: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


def write_frame(pipe: BinaryIO, frame: Frame) -> None:
    head = json.dumps(frame.head, allow_nan=False).encode()
    pipe.write(LENGTHS.pack(len(head), len(frame.body)))
    pipe.write(head)
    pipe.write(frame.body)
    pipe.flush()


def read_frame(pipe: BinaryIO) -> Frame | None:
    """The next frame; None at the end. One that is none raises AttackFailed."""
    lengths = pipe.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(lengths)
    if head > MOST_JSON or body > MOST_BYTES:
        raise AttackFailed(MALFORMED)
    content, rest = pipe.read(head), pipe.read(body)
    if len(content) < head or len(rest) < body:
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise AttackFailed(MALFORMED) from None
    if not isinstance(value, dict):
        raise AttackFailed(MALFORMED)
    return Frame(value, rest)


# A guess: its fields by name; tensors lie in the bytes, as safetensors


def pack_guess(guess: Guess) -> Frame:
    """A guess as a frame; nothing is pickled."""
    tensors: dict[str, Tensor] = {}

    def put(tensor: Tensor) -> str:
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().contiguous().clone()
        return name

    packed: dict[str, Any] = {}
    for item in fields(guess):  # type: ignore[arg-type]
        value = getattr(guess, item.name)
        if item.name == "of":
            packed["of"] = {"origins": [[origin.round, origin.sender] for origin in value]}
        elif isinstance(value, Tensor):
            packed[item.name] = {"tensor": put(value)}
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
            packed[item.name] = {"tensors": [put(one) for one in value]}
        elif isinstance(value, list | tuple):
            packed[item.name] = {"texts": [str(one) for one in value]}
        else:
            packed[item.name] = {"value": value}
    return Frame({"guess": packed}, safetensors.torch.save(tensors) if tensors else b"")


def unpack_guess(kind: type[Guess], frame: Frame) -> Guess:
    """The guess that another process sent, checked; whatever is wrong with it raises AttackFailed."""
    try:
        tensors = safetensors.torch.load(frame.body) if frame.body else {}
        values = {name: _value(given, tensors) for name, given in frame.head["guess"].items()}
        guess = kind(**values)
        guess.check()
    except AttackFailed:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        raise AttackFailed(MALFORMED) from None
    return guess


def _value(given: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    ((how, what),) = given.items()
    match how:
        case "origins":
            return [Origin(_whole(number), _text(sender)) for number, sender in what]
        case "tensor":
            return tensors[what]
        case "tensors":
            return [tensors[name] for name in what]
        case "texts":
            return [one_line(_text(text)) for text in what]
        case "value" if what is None or isinstance(what, int | float | str | bool):
            return what
    raise ValueError(how)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 10_000:
        raise TypeError
    return value


def seeded(state: bytes) -> torch.Generator:
    """A generator that goes on where the one with this state stood."""
    rng = torch.Generator()
    rng.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return rng
