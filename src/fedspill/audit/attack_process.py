"""The process that an attack runs in: it is handed what its adversary sees and knows, and hands back a guess.

Nothing else is in it: no truth, no other messages, no data of clients. It starts in namespaces of its own where the
system has them (`namespaces.seal`), before anything of the attack is imported. It reads frames from one pipe and
answers each on another; it is told what to do by `sealed_attack`, which never runs code of attacks.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch

from fedspill.attack import ActiveAttack
from fedspill.audit.clean_slate import as_if_fresh
from fedspill.audit.frames import Frame, pack_guess, read_frame, seeded, write_frame
from fedspill.audit.namespaces import seal
from fedspill.errors import AttackFailed, FedspillError, NotApplicable, NotKnown
from fedspill.failing_line import failed_with
from fedspill.messages import Message
from fedspill.placement import CPU
from fedspill.registry import make, options_of
from fedspill.tensor_file import TensorFile, TensorPlace
from fedspill.threat import ThreatModel
from fedspill.trace import View


@dataclass(frozen=True, eq=False)
class AttackOrder:
    """What the other process is told: which attack, and what its adversary has. Without a threat, only to describe."""

    attack: str
    options: Mapping[str, Any]
    threat: ThreatModel | None = None
    me: str | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    public: Mapping[str, Any] = field(default_factory=dict)
    device: str = CPU  # where the attack computes


@dataclass(frozen=True, eq=False)
class LargeMessage:
    """A message without its tensors, and where these lie in the file that comes with it."""

    message: Message
    places: Mapping[str, TensorPlace]


def serve(orders: BinaryIO, answers: BinaryIO, files: socket.socket, hidden: list[Path]) -> None:
    """Answers orders until their pipe closes, in a process that `hidden` folders are empty for.

    `files`: large messages come as open files, each with one such message in it and nothing else.
    """
    write_frame(answers, Frame({"ready": True, "unsealed": seal(hidden)}))
    held: _Held | None = None
    while (frame := read_frame(orders)) is not None:
        try:
            if frame.head["do"] == "begin":
                as_if_fresh()
                held = _Held(frame.body, files)
                answer = Frame({"facts": held.facts()})
            else:
                assert held is not None
                answer = held.answer(frame)
        except BaseException as error:
            answer = Frame({"error": _words(error)})
        write_frame(answers, answer)


def _words(error: BaseException) -> dict[str, str]:
    """What went wrong, without the message of an unknown error: it may quote what the attack read."""
    if isinstance(error, NotKnown | NotApplicable):
        return {"kind": "skipped", "text": str(error)}
    if isinstance(error, AttackFailed) and error.__cause__ is not None:
        return {"kind": "crashed", "text": str(error)}
    if isinstance(error, FedspillError):
        return {"kind": "errored", "text": str(error)}
    if isinstance(error, MemoryError):
        return {"kind": "errored", "text": "ran out of memory"}
    return {"kind": "errored", "text": f"raised {failed_with(error)}"}


class _Held:
    """One attack and what its adversary has been told so far."""

    def __init__(self, body: bytes, files: socket.socket) -> None:
        # Written by our own process a moment ago; nothing from outside is ever unpickled.
        order: AttackOrder = pickle.loads(body)  # noqa: S301
        self._attack = make("attacks", order.attack, order.options)
        self._files = files
        self._messages: list[Any] = []
        if order.threat is not None:
            self._view = View(
                self._said, order.threat, order.known, me=order.me, public=order.public, device=order.device
            )

    def facts(self) -> dict[str, Any]:
        attack = self._attack
        return {
            "title": str(attack.title),
            "leak": str(attack.leak.name),
            "needs": {
                "sees": ["|".join(sorted(group)) for group in attack.needs.sees],
                "knows": sorted(attack.needs.knows),
                "does": sorted(attack.needs.does),
            },
            "active": isinstance(attack, ActiveAttack),
            "for_each_client": isinstance(attack, ActiveAttack) and bool(attack.for_each_client),
            "control": dict(attack.control) if attack.control else None,
            "options": options_of(attack),
        }

    def _said(self, kind: Any, round: int | None) -> Iterator[Any]:
        return (m.copy() for m in self._messages if kind in (None, m.kind) and round in (None, m.round))

    def _large(self, told: LargeMessage) -> Message:
        """A message whose tensors stay in the file that is handed over; they are mapped when they are looked at."""
        _, (descriptor,), _, _ = socket.recv_fds(self._files, 1, 1)
        return replace(told.message, tensors=TensorFile(descriptor, told.places))

    def answer(self, frame: Any) -> Any:
        match frame.head["do"]:
            case "say":
                self._messages.append(pickle.loads(frame.body))  # noqa: S301 - as above
                return Frame({})
            case "say large":
                self._messages.append(self._large(pickle.loads(frame.body)))  # noqa: S301 - as above
                return Frame({})
            case "rounds":
                planted = self._attack.rounds(self._view)
                return Frame({"rounds": [planted.start, planted.stop]})
            case "plant":
                model, state = pickle.loads(frame.body)  # noqa: S301 - as above
                made = self._attack.plant(model, self._view, seeded(state))
                tensors = {name: tensor.contiguous().clone() for name, tensor in made.tensors.items()}
                return Frame({"planted": sorted(tensors)}, safetensors.torch.save(tensors))
            case _:
                guess = self._attack(self._view, seed=frame.head["seed"], limit=None)
                packed = pack_guess(guess)
                return Frame({**packed.head, "used": sorted(self._view.used)}, packed.body)
