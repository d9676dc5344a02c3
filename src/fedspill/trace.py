"""Trace: everything that was said in a federation. View: the part of it that one adversary sees. Truth: kept apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final, overload

from torch import Tensor, stack

from fedspill.errors import NotKnown, NotVisible
from fedspill.messages import Kind, Message
from fedspill.placement import CPU, brought_back
from fedspill.progress import UNWATCHED, Progress
from fedspill.tensor_file import TensorFile, is_large
from fedspill.threat import KNOWLEDGE, ThreatModel

if TYPE_CHECKING:
    from torch import nn

    from fedspill.dataset import Examples, KnownSamples
    from fedspill.table_schema import TableSchema


class Origin(NamedTuple):
    """Whose message of which round: what a guess is about."""

    round: int
    sender: str


@dataclass(frozen=True)
class Event:
    """Something that went other than planned in a round: a client left out, a refusal, a failure to record."""

    round: int
    party: str
    what: str
    defense: str = ""  # whose verdict on a received model this is; recordings keep it in `what` alone
    action: str = ""  # that verdict: repair or refuse


@dataclass(frozen=True)
class Keep:
    """What to record: kinds of message, rounds and clients, tensors by shell pattern; None keeps all.

    `tensors_of` has patterns for single kinds of message, beside those for all; a kind without any is not recorded.
    """

    kinds: frozenset[str] | None = None
    rounds: frozenset[int] | None = None
    clients: frozenset[str] | None = None
    tensors: tuple[str, ...] | None = None
    tensors_of: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def wants(self, message: Message) -> bool:
        if not self.wants_kind(message.kind):
            return False
        return self.wants_round(message.round) and (
            self.clients is None or not message.sender.startswith("client:") or message.sender in self.clients
        )

    def wants_round(self, number: int) -> bool:
        return self.rounds is None or number in self.rounds

    def wants_kind(self, kind: str) -> bool:
        return (self.kinds is None or kind in self.kinds) and self.tensors_of.get(kind, ("*",)) != ()

    def wants_tensor(self, name: str, kind: str) -> bool:
        """Whether that tensor of a message of that kind is kept."""
        both = (("*",) if self.tensors is None else self.tensors, self.tensors_of.get(kind, ("*",)))
        return all(any(fnmatchcase(name, pattern) for pattern in patterns) for patterns in both)

    def wanted(self, message: Message) -> dict[str, Tensor]:
        """The tensors of a message that are to be kept, not copied."""
        kept = [name for name in message.tensors if self.wants_tensor(name, message.kind)]
        return {name: message.tensors[name].detach() for name in kept}

    def cut(self, message: Message) -> Message:
        """A copy of the message with the wanted tensors only; that of a large one lies in a file."""
        wanted = self.wanted(message)
        tensors: Mapping[str, Tensor] = TensorFile.holding(wanted) if is_large(wanted) else brought_back(wanted)
        return Message(message.round, message.sender, message.receiver, message.kind, tensors, dict(message.info))


KEEP_ALL = Keep()


class Truth:
    """What really happened, by origin and name ("label_counts", ...). Metrics read it; attacks never do.

    Inputs are not written down: of the samples that an origin used, only their places are ("used_samples", (n, 2):
    client and sample). Beside the clients' data, `beside(clients)`, the truth knows "inputs" and "input_labels" too.
    """

    def __init__(self, facts: Mapping[tuple[Origin, str], Tensor], clients: Sequence[Examples] = ()) -> None:
        self._facts = facts
        self._clients = clients

    @property
    def facts(self) -> Mapping[tuple[Origin, str], Tensor]:
        """Everything, for controls that swap it."""
        return self._facts

    @property
    def clients(self) -> Sequence[Examples]:
        """The clients' data, where they are at hand."""
        return self._clients

    def beside(self, clients: Sequence[Examples]) -> Truth:
        """The same truth, with the data that the clients hold."""
        return Truth(self._facts, clients)

    def get(self, origin: Origin, name: str) -> Tensor:
        if name in _OF_SAMPLES and (origin, name) not in self._facts:
            used = self._facts[origin, "used_samples"].tolist()
            held = [(self._clients[client], sample) for client, sample in used]
            return stack([own.x[sample] if name == "inputs" else own.y[sample] for own, sample in held]).cpu()
        return self._facts[origin, name]

    def has(self, origin: Origin, name: str) -> bool:
        if (origin, name) in self._facts:
            return True
        if name not in _OF_SAMPLES or not len(self._clients):
            return False
        used = self._facts.get((origin, "used_samples"))
        return used is not None and len(used) > 0


_OF_SAMPLES = ("inputs", "input_labels")


class Recorder(ABC):
    """Where a federation puts what is said; what was recorded is a Trace."""

    @abstractmethod
    def say(self, message: Message) -> None: ...

    @abstractmethod
    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None: ...

    @abstractmethod
    def note_event(self, event: Event) -> None: ...

    @abstractmethod
    def end_round(self, number: int) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...


@final
class NoRecorder(Recorder):
    """Recording off."""

    def say(self, message: Message) -> None:
        pass

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        pass

    def note_event(self, event: Event) -> None:
        pass

    def end_round(self, number: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Trace(ABC):
    """A recorded federation: its public protocol, its messages, its events and, apart from them, the truth."""

    protocol: Mapping[str, Any]
    events: list[Event]

    @abstractmethod
    def messages(self, kind: Kind | None = None, *, round: int | None = None) -> Iterator[Message]:
        """Copies of the messages of that kind and round, in the order they were sent."""

    @abstractmethod
    def truth(self) -> Truth: ...

    @final
    def view(
        self,
        threat: ThreatModel,
        *,
        me: str | None = None,
        knowledge: Mapping[str, Any] | None = None,
        progress: Progress = UNWATCHED,
        device: str = CPU,
    ) -> View:
        """What `threat` sees; of the protocol and the given knowledge it gets what it may know, and nothing else."""
        known, public = self.known_to(threat, knowledge)

        def said(kind: Kind | None, number: int | None) -> Iterator[Message]:
            return self.messages(kind, round=number)

        return View(said, threat, known, me=me, public=public, progress=progress, device=device)

    @final
    def known_to(
        self, threat: ThreatModel, knowledge: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `threat` may know of the protocol and of the given knowledge, and what every party knows."""
        offered = {**self.protocol, **(knowledge or {})}
        known = {word: value for word, value in offered.items() if word in threat.knows and value is not None}
        return known, {word: self.protocol.get(word) for word in PUBLIC}


# Facts of the protocol that every party has, because every message shows them.
PUBLIC = ("classes", "head_weight", "head_bias", "head_is_plain", "algorithm", "weighting")


@final
class View:
    """The messages one adversary sees and the knowledge it has; asking for more raises NotVisible or NotKnown."""

    def __init__(
        self,
        said: Callable[[Kind | None, int | None], Iterator[Message]],
        threat: ThreatModel,
        knowledge: Mapping[str, Any],
        *,
        me: str | None = None,
        public: Mapping[str, Any] | None = None,
        progress: Progress = UNWATCHED,
        device: str = CPU,
    ) -> None:
        self.threat = threat
        # Where to compute what runs through the model often. All that a view gives out is on the CPU, where small
        # algebra is faster than on a GPU, and what an attack says is brought back there.
        self.device = device
        self.me = me
        self.progress = progress  # for long work to tell how far it is
        self.public = dict(public or {})
        self.used: set[str] = set()  # knowledge that was really asked for: evidence, not a declaration
        self.__said = said  # of a kind and a round, or of all: no trace, which would have the truth in it
        self.__knowledge = dict(knowledge)

    def get(self, kind: Kind, *, round: int | None = None) -> list[Message]:
        """Copies of the visible messages of that kind."""
        if not self.threat.sees_kind(kind):
            seen = ", ".join(sorted({channel.kind for channel in self.threat.sees}))
            raise NotVisible(
                f"{self.threat.name} does not see {kind} messages; it sees: {seen or 'nothing'}.",
                remedy="An attack must declare what it reads in `needs`.",
            )
        found = self.__said(kind, round)
        return [message for message in found if self.threat.sees_message(message, self.me)]

    def sees(self, kind: Kind) -> bool:
        """Whether messages of that kind are visible at all."""
        return self.threat.sees_kind(kind)

    @overload
    def knows(self, what: Literal["architecture"]) -> Callable[[], nn.Module]: ...
    @overload
    def knows(self, what: Literal["aux_data", "shadow_data", "own_data"]) -> Examples: ...
    @overload
    def knows(self, what: Literal["few_labels", "paired_aux"]) -> KnownSamples: ...
    @overload
    def knows(
        self, what: Literal["unlabelled_aux", "class_prior", "party_features", "active_features", "feature_ranges"]
    ) -> Tensor: ...
    @overload
    def knows(self, what: Literal["batch_size", "samples", "local_epochs", "client_count"]) -> int: ...
    @overload
    def knows(self, what: Literal["local_lr"]) -> float: ...
    @overload
    def knows(self, what: Literal["table_schema"]) -> TableSchema: ...
    @overload
    def knows(self, what: Literal["labels_per_client"]) -> tuple[int, int]: ...
    @overload
    def knows(self, what: str) -> Any: ...

    def knows(self, what: str) -> Any:
        """That piece of knowledge; see fedspill.threat.KNOWLEDGE for the words."""
        if what not in self.threat.knows:
            raise NotKnown(f"{self.threat.name} does not know {KNOWLEDGE.get(what, what)} ({what}).")
        if what not in self.__knowledge:
            raise NotKnown(
                f"{self.threat.name} may know {KNOWLEDGE[what]} ({what}), but this trace does not say it.",
                remedy=f"Give it to the view: trace.view(threat, knowledge={{{what!r}: ...}}).",
            )
        self.used.add(what)
        return self.__knowledge[what]

    def has(self, what: str) -> bool:
        """Whether that knowledge is at hand."""
        return what in self.__knowledge


@final
class MemoryTrace(Trace, Recorder):
    """A trace that lives in memory: recorder and recording in one. Large messages lie in files without a name."""

    def __init__(self, protocol: Mapping[str, Any] | None = None, keep: Keep = KEEP_ALL) -> None:
        self.protocol = dict(protocol or {})
        self.events = []
        self._keep = keep
        self._messages: list[Message] = []
        self._facts: dict[tuple[Origin, str], Tensor] = {}

    @classmethod
    def of(cls, messages: Iterable[Message], protocol: Mapping[str, Any] | None = None) -> MemoryTrace:
        trace = cls(protocol)
        for message in messages:
            trace.say(message)
        return trace

    def say(self, message: Message) -> None:
        if self._keep.wants(message):
            self._messages.append(self._keep.cut(message))

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        self._facts[origin, name] = value.detach().to("cpu", copy=True)

    def truth(self) -> Truth:
        return Truth(self._facts)

    def note_event(self, event: Event) -> None:
        self.events.append(event)

    def end_round(self, number: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def messages(self, kind: Kind | None = None, *, round: int | None = None) -> Iterator[Message]:
        for message in self._messages:
            if kind in (None, message.kind) and round in (None, message.round):
                yield message.copy()
