"""SealedAttack: an attack that runs in a process of its own, seen from the process that holds the truth.

What goes over: the messages that the adversary sees, as copies or, large ones, as open files that hold one message
each, and what it knows. What comes back: a guess, as JSON and safetensors, checked on arrival. Code of the attack is
never imported here, so that it can neither read the truth nor change how it is scored.
"""

from __future__ import annotations

import io
import json
import pickle
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from fedspill.attack import ActiveAttack
from fedspill.audit.attack_process import AttackOrder, LargeMessage
from fedspill.audit.fork_server import fork
from fedspill.audit.frames import MALFORMED, Frame, read_frame, unpack_guess, write_frame
from fedspill.audit.planted_run import Planter
from fedspill.errors import AttackCrashed, AttackFailed, FedspillError, NotApplicable, Unfit
from fedspill.files import dump_json
from fedspill.guess import Guess
from fedspill.leak import Leak
from fedspill.messages import Message
from fedspill.placement import CPU
from fedspill.plain_text import one_line
from fedspill.registry import entries, find, load_leak, make, options_of
from fedspill.tensor_file import TensorFile
from fedspill.threat import Needs, ThreatModel, needs
from fedspill.trace import Trace

_MOST_WORDS = 2000


class _NeedsFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sees: list[str]
    knows: list[str]
    does: list[str]


class AttackFacts(BaseModel):
    """What an attack says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str
    leak: str
    needs: _NeedsFacts
    active: bool
    for_each_client: bool = False
    control: dict[str, Any] | None
    options: dict[str, Any]

    def needed(self) -> Needs:
        return needs(sees=self.needs.sees, knows=self.needs.knows, does=self.needs.does)


def facts_of(name: str, options: Mapping[str, Any]) -> AttackFacts:
    """What the attack says of itself; code of others says it from a process of its own."""
    written = dump_json(dict(options))
    return _foreign_facts(name, written) if is_foreign(name) else _own_facts(name, written)


@cache
def _own_facts(name: str, options: bytes) -> AttackFacts:
    attack = make("attacks", name, json.loads(options))
    return AttackFacts(
        title=attack.title,
        leak=attack.leak.name,
        needs=_NeedsFacts(
            sees=["|".join(sorted(group)) for group in attack.needs.sees],
            knows=sorted(attack.needs.knows),
            does=sorted(attack.needs.does),
        ),
        active=isinstance(attack, ActiveAttack),
        for_each_client=isinstance(attack, ActiveAttack) and attack.for_each_client,
        control=dict(attack.control) if attack.control else None,
        options=options_of(attack),
    )


def is_foreign(name: str) -> bool:
    return find("attacks", name).is_plugin


def leak_of(name: str, options: Mapping[str, Any], facts: AttackFacts) -> Leak[Any]:
    """The leak that the attack is about. One of ours is scored by our code alone.

    Whoever brings a leak of their own brings its metrics too, and these must see the truth: their code is then run
    beside it (docs/promises.md).
    """
    ours = {entry.name for entry in entries("leaks") if not entry.is_plugin}
    if facts.leak in ours:
        found: Leak[Any] = load_leak(facts.leak)
        return found
    foreign: Leak[Any] = make("attacks", name, options).leak
    return foreign


def _foreign_facts(name: str, options: bytes) -> AttackFacts:
    facts, why = _asked(name, options)
    if facts is None:
        raise AttackFailed(why)
    return facts


@cache
def _asked(name: str, options: bytes) -> tuple[AttackFacts | None, str]:
    """What it says of itself, or why it says nothing. Asked once: a process takes seconds, also for a broken one."""
    try:
        with AttackProcess(()) as process:
            return process.begin(AttackOrder(name, json.loads(options))), ""
    except FedspillError as error:
        return None, str(error)


@final
class AttackProcess:
    """The other process and our side of its pipes."""

    def __init__(self, hidden: Sequence[Path], device: str = CPU) -> None:
        self.device = device
        self._process = fork("attack", hidable(hidden))
        self.unsealed = str(self._answer().head.get("unsealed", ""))  # why it could see more than it is given

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, order: AttackOrder) -> AttackFacts:
        """Makes the attack there; what it says of itself."""
        answer = self.ask(Frame({"do": "begin"}, pickled(order)))
        try:
            return AttackFacts.model_validate(answer.head.get("facts"))
        except ValidationError:
            raise AttackFailed(MALFORMED) from None

    def ask(self, frame: Frame) -> Frame:
        """The answer to one order; an error there is raised here, in the words it was given."""
        try:
            write_frame(self._process.orders, frame)
        except (BrokenPipeError, OSError):
            raise AttackFailed("Its process ended before it answered.") from None
        return self._answer()

    def say(self, message: Message, *, own_copy: bool) -> None:
        """Hands over a message; a large one as an open file that holds it alone, not through the pipe.

        own_copy: the file is a copy, for code of others, which could open the recording's own again to write to it.
        """
        tensors = message.tensors
        if not isinstance(tensors, TensorFile):
            self.ask(Frame({"do": "say"}, pickled(message)))
            return
        file = tensors.copied() if own_copy else tensors
        with suppress(OSError):  # a process that has ended is found out by asking it
            socket.send_fds(self._process.files, [b"1"], [file.fileno()])
        self.ask(Frame({"do": "say large"}, pickled(LargeMessage(replace(message, tensors={}), tensors.places))))

    def _answer(self) -> Frame:
        answer = read_frame(self._process.answers)
        if answer is None:
            raise AttackFailed("Its process ended before it answered.")
        error = answer.head.get("error")
        if error is None:
            return answer
        if not isinstance(error, dict) or not isinstance(error.get("text"), str):
            raise AttackFailed(MALFORMED)
        text = one_line(error["text"])[:_MOST_WORDS]
        kinds = {"skipped": NotApplicable, "crashed": AttackCrashed}
        raise kinds.get(str(error.get("kind")), AttackFailed)(text)

    def warnings(self, attack: str) -> list[str]:
        """What a reader must know of the seal; nothing of ours looks where it should not."""
        if not self.unsealed or not is_foreign(attack):
            return []
        return [f"this is code of others, and it ran unsealed: {self.unsealed}; it could have read the audit's folder"]

    def close(self) -> None:
        self._process.end()


@final
class SealedAttack(Planter):
    """One attack by one adversary on one recording, in the other process."""

    def __init__(
        self, process: AttackProcess, name: str, options: Mapping[str, Any], threat: ThreatModel, me: str | None
    ) -> None:
        self._process, self._threat, self._me = process, threat, me
        self._name, self._options = name, options
        self._told = 0  # how many of the trace's messages went over
        self._for_each_client = False
        self.used: list[str] = []

    @property
    def threat(self) -> ThreatModel:
        return self._threat

    @property
    def for_each_client(self) -> bool:
        return self._for_each_client

    def begin(self, trace: Trace, knowledge: Mapping[str, Any] | None) -> None:
        """Hands over what the adversary knows."""
        self._trace = trace
        known, public = trace.known_to(self._threat, knowledge)
        order = AttackOrder(self._name, self._options, self._threat, self._me, known, public, self._process.device)
        facts = self._process.begin(order)
        self._for_each_client = facts.for_each_client
        lacks = self._threat.missing(facts.needed())
        if lacks:
            raise Unfit(f"{self._name} cannot be run by {self._threat.name}: it needs {'; '.join(lacks)}.")

    def _tell(self) -> None:
        """Hands over what was said since the last time, as far as the adversary hears it."""
        for number, message in enumerate(self._trace.messages()):
            if number >= self._told:
                self._told = number + 1
                if self._threat.sees_message(message, self._me):
                    self._process.say(message, own_copy=is_foreign(self._name))

    def rounds(self) -> range:
        answer = self._process.ask(Frame({"do": "rounds"})).head.get("rounds")
        if not isinstance(answer, list) or [type(number) for number in answer] != [int, int]:
            raise AttackFailed(MALFORMED)
        return range(*answer)

    def plant(self, model: Message, rng: torch.Generator) -> Message:
        self._tell()
        state = bytes(rng.get_state().numpy())
        tensors = {name: tensor.detach().clone() for name, tensor in model.tensors.items()}
        answer = self._process.ask(
            Frame({"do": "plant"}, pickled((replace(model, tensors=tensors, info=dict(model.info)), state)))
        )
        try:
            tensors = safetensors.torch.load(answer.body)
        except SafetensorError:
            raise AttackFailed(MALFORMED) from None
        _refuse_another_shape(model.tensors, tensors)
        return Message(model.round, model.sender, model.receiver, model.kind, tensors, dict(model.info))

    def guess(self, kind: type[Guess], seed: int) -> Guess:
        self._tell()
        answer = self._process.ask(Frame({"do": "guess", "seed": seed}))
        used = answer.head.get("used")
        if not isinstance(used, list) or not all(isinstance(word, str) for word in used):
            raise AttackFailed(MALFORMED)
        self.used = sorted(set(used) & self._threat.knows)
        return unpack_guess(kind, answer)


def _refuse_another_shape(sent: Mapping[str, Tensor], planted: Mapping[str, Tensor]) -> None:
    if sent.keys() != planted.keys() or any(sent[name].shape != planted[name].shape for name in sent):
        raise AttackFailed("It planted a model of another shape.")


class _CutStorage(pickle.Pickler):
    """Pickles a tensor without the rest of its storage: a slice of the clients' data must not carry all of them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.untyped_storage().nbytes() != value.numel() * value.element_size():
            own: Any = value.detach().clone()
            return own.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def pickled(value: object) -> bytes:
    """For the other process, which we started; nothing that comes back is unpickled."""
    file = io.BytesIO()
    _CutStorage(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def hidable(folders: Sequence[Path]) -> list[Path]:
    """Those that can be made empty for the other process: they are there, and no code lies in them."""
    code = [Path(entry or ".").resolve() for entry in (*sys.path, sys.prefix, sys.base_prefix)]
    found = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        if folder.is_dir() and not any(place.is_relative_to(folder) for place in code):
            found.append(folder)
    return found
