"""A round under secure aggregation: the server sees the model and the sum, and the record proves that it is the sum."""

from __future__ import annotations

from collections.abc import Callable

from fedspill.errors import FedspillError
from fedspill.flower.arrays import tensors_of
from fedspill.flower.round_messages import Seen, Told, Truth, change_of, same_arrays
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.trace import Event


def tell_sum(seen: Seen, client_name: Callable[[int], str] = client, truth: Truth | None = None) -> Told:
    """Model and aggregate of a round under secure aggregation, where each reply that reaches the server is the sum.

    That is proven, not believed: replies that differ are single updates, and the sum of one client is that client.
    In both cases nothing of the round is recorded.
    """
    (model,) = [tensors_of(arrays) for arrays in seen.models]
    messages = [Message(seen.number, SERVER, EVERYONE, "model", model)]
    events = [Event(seen.number, client_name(reply.node), reply.error) for reply in seen.in_order() if reply.error]
    events += [Event(seen.number, client_name(node), "not in the sum") for node in seen.silent()]
    answered = [reply for reply in seen.in_order() if not reply.error]
    if not answered:
        return Told(messages, events, {})
    if len(answered) == 1:
        raise FedspillError("only one client is in the sum, so the sum is its update")
    if not all(same_arrays(answered[0].arrays, reply.arrays) for reply in answered):
        raise FedspillError("the replies differ, so they are updates of single clients and not their sum")
    change = change_of(answered[0], model)
    if not change.sound:
        events.append(Event(seen.number, AGGREGATOR, f"passed on: the sum {change.problem}"))
        return Told(messages, events, {})
    examples = [reply.examples for reply in answered if reply.examples is not None]
    info: dict[str, int | float | str | bool] = {"clients": len(answered), "of": "update"}
    if len(examples) == len(answered):
        info["examples"] = sum(examples)
    messages.append(Message(seen.number, AGGREGATOR, SERVER, "aggregate", change.update, info))
    facts = truth(seen.number, [client_name(reply.node) for reply in answered]) if truth else {}
    return Told(messages, events, facts)
