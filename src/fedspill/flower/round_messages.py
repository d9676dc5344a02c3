"""One round as a Flower server saw it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord
from flwr.app import Message as FlowerMessage
from torch import Tensor

from fedspill.adapters.round_messages import ReceivedUpdate, examples_fault
from fedspill.errors import FedspillError
from fedspill.federation.update_checks import update_fault
from fedspill.flower.arrays import Arrays, single_array_record, tensors_of, update_from
from fedspill.plain_text import one_line

REFUSED = "fedspill"  # how a guard of ours begins the reason of a refusal


@dataclass(frozen=True, eq=False)
class NodeReply:
    """What came back from one node: arrays, or the reason why there are none."""

    node: int
    arrays: Arrays = field(default_factory=dict)
    examples: int | None = None
    error: str = ""
    fault: str = ""  # what is wrong with what it says beside its arrays

    def update_to(self, model: Mapping[str, Tensor]) -> ReceivedUpdate:
        """Its update, as a reply to `model`; never raises for what a client sent."""
        expected = {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}
        try:
            update = update_from(model, self.arrays)
        except FedspillError as error:
            return ReceivedUpdate({}, f"cannot be read: {error}")
        return ReceivedUpdate(update, update_fault(update, expected))


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

    def read_models(self) -> list[dict[str, Tensor]]:
        return [tensors_of(model) for model in self.models]


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
