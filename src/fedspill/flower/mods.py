"""Defenses as a Flower client mod: the model that comes in is inspected, the update that goes out is defended."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import Context, Error, MessageType
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from torch import Tensor, nn

from fedspill.adapters.client_defenses import compares_models, defended, inspect, refuse_unable
from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.errors import FedspillError
from fedspill.flower.arrays import array_record, single_array_record, tensors_of, update_from
from fedspill.flower.guard_memory import GuardMemory
from fedspill.messages import SERVER, Message, client
from fedspill.seeds import generator

LOG = logging.getLogger("flwr.fedspill")


def mod(
    *defenses: Defense,
    seed: int | None = None,
    memory: Path | str | None = None,
    arrays_key: str | None = None,
    architecture: Callable[[], nn.Module] | None = None,
    examples: Callable[[Context], Examples] | None = None,
) -> Mod:
    """A client mod for these defenses, in this order: `ClientApp(mods=[mod(defense)])`.

    Every model that arrives is shown to the defenses first. A refused one is answered with an error that names the
    reason; training never sees it. What training returns leaves as the model that was sent plus the defended update.

    seed        for simulations that shall repeat; without it, noise comes from the system's own randomness
    memory      a folder of this client, for what must survive a restart of its SuperNode. What must survive the end of
                a training process is kept by Flower, which loses it when the SuperNode itself ends.
    arrays_key  the ArrayRecord that holds the model, where messages hold several
    architecture, examples  the model's code and this client's data, for guards that try a model out before training
    """
    refuse_unable(defenses, "mod", "Flower's secaggplus_mod")
    return DefenseMod(defenses, seed, None if memory is None else Path(memory), arrays_key, architecture, examples)


@dataclass(frozen=True)
class DefenseMod:
    """The mod: Flower calls it with each message, and it calls the training code."""

    defenses: tuple[Defense, ...]
    seed: int | None
    memory: Path | None
    arrays_key: str | None
    architecture: Callable[[], nn.Module] | None = None
    examples: Callable[[Context], Examples] | None = None

    def __call__(self, msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        if not msg.has_content() or not msg.content.array_records:
            return call_next(msg, context)  # there is no model in it to inspect
        memory = GuardMemory(context, "-".join(defense.name for defense in self.defenses), self.memory)
        number = round_number(msg, memory)
        try:
            key, record = single_array_record(msg.content, self.arrays_key)
            received = tensors_of(record)
        except FedspillError as error:
            return _refusal(msg, f"the model cannot be read: {error}")
        own_address = client(_client_index(context))
        incoming = Message(number, SERVER, own_address, "model", received)
        own = self.examples(context) if self.examples is not None else None
        seen = inspect(self.defenses, incoming, memory.previous_model(), memory.notes_of, self.architecture, own)
        if seen.model is None:
            memory.keep_notes(seen.notes)
            return _refusal(msg, seen.findings)
        model = seen.model
        if model.tensors is not received:
            LOG.warning("fedspill: %s", seen.findings)
            msg.content[key] = array_record(model.tensors)
        if msg.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(msg, context)
        memory.keep_notes(seen.notes)
        memory.remember(number + 1, model if compares_models(self.defenses) else None)
        reply = call_next(msg, context)
        if reply.has_error():
            return reply
        return self._defend(msg, reply, received, model.tensors, number, context)

    def _defend(
        self,
        msg: FlowerMessage,
        reply: FlowerMessage,
        received: Mapping[str, Tensor],
        start: Mapping[str, Tensor],
        number: int,
        context: Context,
    ) -> FlowerMessage:
        """The reply with the defended update on top of the model as it was sent, repaired or not."""
        try:
            key, record = single_array_record(reply.content, self.arrays_key)
            update = update_from(start, record)
            misfits = sorted(name for name in update if name not in start or start[name].shape != update[name].shape)
        except FedspillError as error:
            return _refusal(msg, f"the update cannot be read: {error}")
        if misfits:
            return _refusal(msg, f"the update does not fit the model at {', '.join(misfits[:8])}; it was not sent")
        message = Message(number, client(_client_index(context)), SERVER, "update", update)
        safe = defended(self.defenses, message, lambda defense: self._rng(defense, number, _client_index(context)))
        if safe is message and start is received:
            return reply
        leaving = {name: received[name] + change for name, change in safe.tensors.items()}
        reply.content[key] = array_record({**tensors_of(record), **leaving})
        return reply

    def _rng(self, defense: Defense, number: int, index: int) -> torch.Generator:
        if self.seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        return generator(self.seed, defense.name, number, index)


def _refusal(msg: FlowerMessage, why: str) -> FlowerMessage:
    LOG.warning("fedspill: %s", why)
    return FlowerMessage(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"fedspill: {why}"), reply_to=msg)


def round_number(msg: FlowerMessage, memory: GuardMemory) -> int:
    """From 0: what the server states, else the number of rounds that this client has trained in."""
    for config in msg.content.config_records.values():
        stated = config.get("server-round")
        if isinstance(stated, int) and stated > 0:
            return stated - 1
    return memory.rounds_trained()


def _client_index(context: Context) -> int:
    """The node's partition where it has one, else the node's own number."""
    return int(context.node_config.get("partition-id", context.node_id))
