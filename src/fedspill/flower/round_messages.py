"""One round as a Flower server saw it, and how that becomes the messages of a trace."""

from __future__ import annotations

import math
import re
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
from fedspill.flower.arrays import Arrays, single_array_record, tensors_of, update_from
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.plain_text import one_line
from fedspill.trace import Event, Origin

# (round, addresses of the clients in the sum) to the facts of that round, where somebody knows them: in a simulation.
FactsOfRound: TypeAlias = Callable[[int, Sequence[str]], Mapping[tuple[Origin, str], Tensor]]

MOST_EXAMPLES = 1 << 40  # no client trains on a million million
REFUSED = "fedspill"  # how a guard of ours begins the reason of a refusal
ALL_ZERO = "is all zero"  # a fault that is worth an event, and does no harm in a sum


@dataclass(frozen=True, eq=False)
class NodeReply:
    """What came back from one node: arrays, or the reason why there are none."""

    node: int
    arrays: Arrays = field(default_factory=dict)
    examples: int | None = None
    error: str = ""
    fault: str = ""  # what is wrong with what it says beside its arrays


@dataclass(frozen=True, eq=False)
class ServerRound:
    """What the server sent and received in one round.

    It refers to Flower's arrays without reading them, so that making it costs training nothing.
    """

    number: int  # from 0
    models: tuple[Arrays, ...]
    receivers: Mapping[int, int]  # node: which of the models it was sent
    replies: tuple[NodeReply, ...]

    @property
    def nbytes(self) -> int:
        received = (reply.arrays for reply in self.replies)
        return sum(len(array.data) for arrays in (*self.models, *received) for array in arrays.values())

    def nodes_without_reply(self) -> list[int]:
        """Nodes that were asked and did not answer."""
        return sorted(self.receivers.keys() - {reply.node for reply in self.replies})

    def replies_in_order_of_asking(self) -> list[NodeReply]:
        """Not in the order of arrival, so that the same federation gives the same trace."""
        order = {node: place for place, node in enumerate(self.receivers)}
        return sorted(self.replies, key=lambda reply: order.get(reply.node, len(order)))


def models_sent(messages: Iterable[FlowerMessage], key: str | None) -> tuple[tuple[Arrays, ...], dict[int, int]]:
    """The distinct models among messages to nodes, and which node gets which. Usually one for all."""
    models: list[Arrays] = []
    known: dict[int, int] = {}  # id of an ArrayRecord: which model it is; comparing all bytes would be slow
    receivers: dict[int, int] = {}
    for message in messages:
        _, record = single_array_record(message.content, key)
        if id(record) not in known:
            same = (index for index, model in enumerate(models) if same_arrays(model, record))
            known[id(record)] = next(same, len(models))
            if known[id(record)] == len(models):
                models.append(dict(record))
        receivers[message.metadata.dst_node_id] = known[id(record)]
    return tuple(models), receivers


def same_arrays(one: Arrays, other: Arrays | ArrayRecord) -> bool:
    return one.keys() == other.keys() and all(one[name].data == other[name].data for name in one)


def reply_of(message: FlowerMessage, key: str | None, examples_key: str) -> NodeReply:
    """One reply, its arrays not read yet."""
    node = message.metadata.src_node_id
    if message.has_error():
        return NodeReply(node, error=f"failed: {_kind_of(message.error.reason)}")
    try:
        _, record = single_array_record(message.content, key)
        values = [
            numbers[examples_key] for numbers in message.content.metric_records.values() if examples_key in numbers
        ]
    except FedspillError as error:
        return NodeReply(node, error=f"left out: {error}")
    except Exception as error:  # one reply that is like no other must not cost the others
        return NodeReply(node, error=f"left out: it cannot be read ({type(error).__name__})")
    if not values:
        return NodeReply(node, dict(record))
    said, fault = values[0], examples_fault(values[0])
    examples = int(said) if not fault and isinstance(said, int | float) else None
    return NodeReply(node, dict(record), examples, fault=fault)


def examples_fault(said: object) -> str:
    """Why a number of examples is not to be believed; a strategy that weighs by it would be spoiled. Empty if it is."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return "says no number of examples"
    if math.isnan(said) or math.isinf(said):
        return f"says that it comes from {said} examples"
    if said < 1 or said > MOST_EXAMPLES or said != int(said):
        return f"says that it comes from {said:.6g} examples"
    return ""


_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt|Exit))\b")


def _kind_of(reason: str | None) -> str:
    """What kind of error a client reports, without its text: that may quote what it trained on.

    A refusal by our own guard says in numbers what it refused, and stays.
    """
    lines = (reason or "").strip().splitlines()
    if not lines:
        return "no reason given"
    last = lines[-1][:200]
    if last.startswith(REFUSED):
        return one_line(last)
    found = _EXCEPTION.match(last)
    return found[1] if found else "an error"


@dataclass(frozen=True)
class ReceivedUpdate:
    """The update in a reply, and what is wrong with it."""

    update: dict[str, Tensor]
    problem: str | None

    @property
    def is_sound(self) -> bool:
        """Whether it may go into the sum."""
        return self.problem in (None, ALL_ZERO)


def update_in_reply(reply: NodeReply, model: Mapping[str, Tensor]) -> ReceivedUpdate:
    """The update in a reply to `model`; never raises for what a client sent."""
    expected = {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}
    try:
        update = update_from(model, reply.arrays)
    except FedspillError as error:
        return ReceivedUpdate({}, f"cannot be read: {error}")
    return ReceivedUpdate(update, update_fault(update, expected))


@dataclass(frozen=True, eq=False)
class RoundMessages:
    """A round as a trace holds it."""

    messages: list[Message]
    events: list[Event]
    facts: Mapping[tuple[Origin, str], Tensor]  # the truth, where somebody knows it


def messages_of_round(
    round_seen: ServerRound,
    client_name: Callable[[int], str] = client,
    facts_of_round: FactsOfRound | None = None,
    *,
    weighting: Weighting = "examples",
    leaves_out: bool = False,
) -> RoundMessages:
    """Models, updates and aggregate of a round, and what went wrong in it.

    An update is what came back minus what was sent to that node. The aggregate is the mean of the sound updates, as
    FedAvg forms it, whatever the strategy makes of it afterwards. `leaves_out` says whether unsound updates are kept
    from the strategy, for the words of the event alone.
    """
    number = round_seen.number
    messages: list[Message] = []
    models = [tensors_of(model) for model in round_seen.models]
    if len(models) == 1:
        messages.append(Message(number, SERVER, EVERYONE, "model", models[0]))
    else:
        messages.extend(
            Message(number, SERVER, client_name(node), "model", models[which])
            for node, which in round_seen.receivers.items()
        )
    events = [Event(number, client_name(node), "did not answer") for node in round_seen.nodes_without_reply()]
    updates: list[Message] = []
    answered: set[int] = set()
    for reply in round_seen.replies_in_order_of_asking():
        name = client_name(reply.node)
        if reply.error or reply.node not in round_seen.receivers:
            events.append(Event(number, name, reply.error or "answered without having been asked"))
            continue
        if reply.node in answered or reply.fault:
            fate = "left out" if leaves_out else "passed on"
            events.append(Event(number, name, f"{fate}: it {reply.fault or 'answered twice'}"))
            answered.add(reply.node)
            continue
        answered.add(reply.node)
        received = update_in_reply(reply, models[round_seen.receivers[reply.node]])
        if received.problem is not None:
            fate = "left out" if leaves_out and not received.is_sound else "passed on"
            events.append(Event(number, name, f"{fate}: its update {received.problem}"))
        if received.is_sound:
            info = {} if reply.examples is None else {"examples": reply.examples}
            updates.append(Message(number, name, SERVER, "update", received.update, info))
    messages += updates
    if updates:
        messages.append(_aggregate(number, updates, weighting))
    facts = facts_of_round(number, [update.sender for update in updates]) if facts_of_round else {}
    return RoundMessages(messages, events, facts)


def _aggregate(number: int, updates: list[Message], weighting: Weighting) -> Message:
    examples = [int(update.info.get("examples", 0)) for update in updates]
    shares = examples if weighting == "examples" and min(examples) > 0 else [1] * len(updates)
    total = weighted_sum([update.tensors for update in updates], [share / sum(shares) for share in shares])
    info: dict[str, int | float | str | bool] = {"clients": len(updates), "of": "update"}
    if min(examples) > 0:
        info["examples"] = sum(examples)
    return Message(number, AGGREGATOR, SERVER, "aggregate", total, info)
