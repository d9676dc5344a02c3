"""A round under secure aggregation as messages of a trace: the model and the sum, after proof that it is the sum."""

from __future__ import annotations

from collections.abc import Callable

from fedspill.adapters.round_messages import FactsOfRound, RoundMessages, in_order_of_asking, nodes_without_reply
from fedspill.errors import FedspillError
from fedspill.flower.arrays import tensors_of
from fedspill.flower.round_messages import ServerRound, same_arrays
from fedspill.messages import AGGREGATOR, EVERYONE, SERVER, Message, client
from fedspill.trace import Event


def messages_of_summed_round(
    round_seen: ServerRound, client_name: Callable[[int], str] = client, facts_of_round: FactsOfRound | None = None
) -> RoundMessages:
    """Model and aggregate of a round under secure aggregation, where each reply that reaches the server is the sum.

    That is checked: replies that differ are single updates, and the sum of one client is that client's update. In both
    cases nothing of the round may be recorded, so an error is raised.
    """
    number = round_seen.number
    (model,) = [tensors_of(arrays) for arrays in round_seen.models]
    replies = in_order_of_asking(round_seen.receivers, round_seen.replies)
    messages = [Message(number, SERVER, EVERYONE, "model", model)]
    events = [Event(number, client_name(reply.node), reply.error) for reply in replies if reply.error]
    events += [Event(number, client_name(node), "not in the sum") for node in nodes_without_reply(round_seen)]
    answered = [reply for reply in replies if not reply.error]
    if not answered:
        return RoundMessages(messages, events, {})
    if len(answered) == 1:
        raise FedspillError("only one client is in the sum, so the sum is its update")
    if not all(same_arrays(answered[0].arrays, reply.arrays) for reply in answered):
        raise FedspillError("the replies differ, so they are updates of single clients and not their sum")
    received = answered[0].update_to(model)
    if not received.is_sound:
        events.append(Event(number, AGGREGATOR, f"passed on: the sum {received.problem}"))
        return RoundMessages(messages, events, {})
    examples = [reply.examples for reply in answered if reply.examples is not None]
    info: dict[str, int | float | str | bool] = {"clients": len(answered), "of": "update"}
    if len(examples) == len(answered):
        info["examples"] = sum(examples)
    messages.append(Message(number, AGGREGATOR, SERVER, "aggregate", received.update, info))
    facts = facts_of_round(number, [client_name(reply.node) for reply in answered]) if facts_of_round else {}
    return RoundMessages(messages, events, facts)
