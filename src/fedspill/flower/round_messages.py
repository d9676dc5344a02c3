"""One round as the server saw it, and the same as messages of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flwr.app import ArrayRecord
from flwr.app import Message as FlowerMessage
from torch import Tensor

from fedspill.errors import FedspillError
from fedspill.federation.horizontal import Weighting
from fedspill.federation.update_checks import update_fault
from fedspill.federation.weighted_sum import weighted_sum
from fedspill.flower.arrays import Arrays, changes, only_arrays, tensors_of
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.trace import Event, Origin

# (round, addresses of the clients in the sum) to the facts of that round, where somebody knows them: in a simulation.
Truth: TypeAlias = Callable[[int, Sequence[str]], Mapping[tuple[Origin, str], Tensor]]

ALL_ZERO = "is all zero"  # odd, but sound: it harms no sum


@dataclass(frozen=True, eq=False)
class Reply:
    """What came back from one node: arrays, or the reason why there are none."""

    node: int
    arrays: Arrays = field(default_factory=dict)
    examples: int | None = None
    error: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the server sent and received in one round. Holds references, opens nothing: cheap to make while training."""

    number: int  # from 0
    models: tuple[Arrays, ...]
    receivers: Mapping[int, int]  # node: which of the models it was sent
    replies: tuple[Reply, ...]

    @property
    def nbytes(self) -> int:
        return sum(len(array.data) for part in self._parts() for array in part.values())

    def silent(self) -> list[int]:
        """Nodes that were asked and did not answer."""
        return sorted(self.receivers.keys() - {reply.node for reply in self.replies})

    def in_order(self) -> list[Reply]:
        """Replies in the order of asking, not of arrival, so that the same federation gives the same trace."""
        order = {node: place for place, node in enumerate(self.receivers)}
        return sorted(self.replies, key=lambda reply: order.get(reply.node, len(order)))

    def _parts(self) -> Iterable[Arrays]:
        yield from self.models
        yield from (reply.arrays for reply in self.replies)


def models_in(messages: Iterable[FlowerMessage], key: str | None) -> tuple[tuple[Arrays, ...], dict[int, int]]:
    """The distinct models among messages to nodes, and which node gets which. Usually one for all."""
    models: list[Arrays] = []
    known: dict[int, int] = {}
    receivers: dict[int, int] = {}
    for message in messages:
        _, record = only_arrays(message.content, key)
        if id(record) not in known:
            same = (index for index, model in enumerate(models) if same_arrays(model, record))
            known[id(record)] = next(same, len(models))
            if known[id(record)] == len(models):
                models.append(dict(record))
        receivers[message.metadata.dst_node_id] = known[id(record)]
    return tuple(models), receivers


def same_arrays(one: Arrays, other: Arrays | ArrayRecord) -> bool:
    return one.keys() == other.keys() and all(one[name].data == other[name].data for name in one)


def reply_in(message: FlowerMessage, key: str | None, examples_key: str) -> Reply:
    """One reply, unopened."""
    node = message.metadata.src_node_id
    if message.has_error():
        return Reply(node, error=f"failed: {_one_line(message.error.reason)}")
    try:
        _, record = only_arrays(message.content, key)
    except FedspillError as error:
        return Reply(node, error=f"left out: {error}")
    values = [metrics[examples_key] for metrics in message.content.metric_records.values() if examples_key in metrics]
    examples = int(values[0]) if values and isinstance(values[0], int | float) else None
    return Reply(node, dict(record), examples)


def _one_line(reason: str | None) -> str:
    """The last line of a client's error, which names the exception; what stands above it may hold data."""
    lines = (reason or "no reason given").strip().splitlines() or ["no reason given"]
    return lines[-1][:200]


@dataclass(frozen=True)
class Change:
    """A reply opened: the update in it, and what is wrong with it."""

    update: dict[str, Tensor]
    problem: str | None

    @property
    def sound(self) -> bool:
        return self.problem in (None, ALL_ZERO)


def change_of(reply: Reply, model: Mapping[str, Tensor]) -> Change:
    """The update in a reply to `model`; never raises for what a client sent."""
    expected = {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}
    try:
        update = changes(model, reply.arrays)
    except FedspillError as error:
        return Change({}, f"cannot be read: {error}")
    return Change(update, update_fault(update, expected))


@dataclass(frozen=True, eq=False)
class Told:
    """A round in the words of a trace."""

    messages: list[Message]
    events: list[Event]
    facts: Mapping[tuple[Origin, str], Tensor]  # the truth, where somebody knows it


def tell(
    seen: Seen,
    client_name: Callable[[int], str] = client,
    truth: Truth | None = None,
    *,
    weighting: Weighting = "examples",
    leaves_out: bool = False,
) -> Told:
    """Models, updates and aggregate of a round, and what went wrong in it.

    An update is what came back minus what was sent to that node. The aggregate is the mean of the sound updates, as
    FedAvg forms it, whatever the strategy makes of it afterwards.
    """
    messages: list[Message] = []
    models = [tensors_of(model) for model in seen.models]
    if len(models) == 1:
        messages.append(Message(seen.number, SERVER, EVERYONE, "model", models[0]))
    else:
        messages.extend(
            Message(seen.number, SERVER, client_name(node), "model", models[which])
            for node, which in seen.receivers.items()
        )
    events = [Event(seen.number, client_name(node), "did not answer") for node in seen.silent()]
    updates: list[Message] = []
    for reply in seen.in_order():
        name = client_name(reply.node)
        if reply.error or reply.node not in seen.receivers:
            events.append(Event(seen.number, name, reply.error or "answered without having been asked"))
            continue
        change = change_of(reply, models[seen.receivers[reply.node]])
        if change.problem is not None:
            what = "left out" if leaves_out and not change.sound else "passed on"
            events.append(Event(seen.number, name, f"{what}: its update {change.problem}"))
        if change.sound:
            info = {} if reply.examples is None else {"examples": reply.examples}
            updates.append(Message(seen.number, name, SERVER, "update", change.update, info))
    messages += updates
    if updates:
        messages.append(_aggregate(seen.number, updates, weighting))
    facts = truth(seen.number, [update.sender for update in updates]) if truth else {}
    return Told(messages, events, facts)


def _aggregate(number: int, updates: list[Message], weighting: Weighting) -> Message:
    examples = [int(update.info.get("examples", 0)) for update in updates]
    shares = examples if weighting == "examples" and min(examples) > 0 else [1] * len(updates)
    total = weighted_sum([update.tensors for update in updates], [share / sum(shares) for share in shares])
    info: dict[str, int | float | str | bool] = {"clients": len(updates), "of": "update"}
    if min(examples) > 0:
        info["examples"] = sum(examples)
    return Message(number, AGGREGATOR, SERVER, "aggregate", total, info)
