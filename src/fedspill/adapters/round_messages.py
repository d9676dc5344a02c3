"""One round as a server saw it becomes the messages of a trace; what is wrong with a reply becomes an event."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from fedspill.federation.horizontal import Weighting
from fedspill.federation.weighted_sum import weighted_sum
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.trace import Event, Origin

# (round, addresses of the clients in the sum) to the facts of that round, where somebody knows them: in a simulation.
FactsOfRound: TypeAlias = Callable[[int, Sequence[str]], Mapping[tuple[Origin, str], Tensor]]
Node: TypeAlias = Any  # how an engine calls a client: Flower by a number, NVFlare by a name

MOST_EXAMPLES = 1 << 40  # no client trains on a million million
ALL_ZERO = "is all zero"  # a fault that is worth an event, and does no harm in a sum


@dataclass(frozen=True)
class ReceivedUpdate:
    """The update in a reply, and what is wrong with it."""

    update: dict[str, Tensor]
    problem: str | None

    @property
    def is_sound(self) -> bool:
        """Whether it may go into the sum."""
        return self.problem in (None, ALL_ZERO)


class Reply(Protocol):
    """What came back from one client."""

    @property
    def node(self) -> Node: ...

    @property
    def examples(self) -> int | None: ...

    @property
    def error(self) -> str:
        """Why there is no update in it; empty if there is one."""

    @property
    def fault(self) -> str:
        """What is wrong with what it says beside its numbers; empty if nothing is."""

    def update_to(self, model: Mapping[str, Tensor]) -> ReceivedUpdate:
        """Its update, as a reply to `model`; never raises for what a client sent."""


AnyReply = TypeVar("AnyReply", bound=Reply)


class SeenRound(Protocol):
    """What a server sent and received in one round, in whatever form its engine has it."""

    @property
    def number(self) -> int:
        """From 0."""

    @property
    def receivers(self) -> Mapping[Node, int]:
        """Who was asked, and which of the models each was sent."""

    @property
    def replies(self) -> Sequence[Reply]: ...

    @property
    def nbytes(self) -> int: ...

    def read_models(self) -> list[dict[str, Tensor]]:
        """The distinct models that were sent, usually one for all."""


@dataclass(frozen=True, eq=False)
class RoundMessages:
    """A round as a trace holds it."""

    messages: list[Message]
    events: list[Event]
    facts: Mapping[tuple[Origin, str], Tensor]  # the truth, where somebody knows it


def examples_fault(said: object) -> str:
    """Why a number of examples is not to be believed; a strategy that weighs by it would be spoiled. Empty if it is."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return "says no number of examples"
    if math.isnan(said) or math.isinf(said):
        return f"says that it comes from {said} examples"
    if said < 1 or said > MOST_EXAMPLES or said != int(said):
        return f"says that it comes from {said:.6g} examples"
    return ""


def nodes_without_reply(round_seen: SeenRound) -> list[Node]:
    """Nodes that were asked and did not answer."""
    return sorted(round_seen.receivers.keys() - {reply.node for reply in round_seen.replies})


def in_order_of_asking(receivers: Mapping[Node, int], replies: Sequence[AnyReply]) -> list[AnyReply]:
    """Not in the order of arrival, so that the same federation gives the same trace."""
    order = {node: place for place, node in enumerate(receivers)}
    return sorted(replies, key=lambda reply: order.get(reply.node, len(order)))


def messages_of_round(
    round_seen: SeenRound,
    client_name: Callable[[Node], str] = client,
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
    models = round_seen.read_models()
    if len(models) == 1:
        messages.append(Message(number, SERVER, EVERYONE, "model", models[0]))
    else:
        messages.extend(
            Message(number, SERVER, client_name(node), "model", models[which])
            for node, which in round_seen.receivers.items()
        )
    events = [Event(number, client_name(node), "did not answer") for node in nodes_without_reply(round_seen)]
    updates: list[Message] = []
    answered: set[Node] = set()
    for reply in in_order_of_asking(round_seen.receivers, round_seen.replies):
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
        received = reply.update_to(models[round_seen.receivers[reply.node]])
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
