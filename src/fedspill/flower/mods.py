"""mod: defenses as a Flower client mod. What comes in is inspected, what goes out is defended."""

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

from fedspill.dataset import Examples
from fedspill.defense import ClientContext, Defense
from fedspill.errors import FedspillError, UsageError
from fedspill.flower.arrays import as_record, changes, only_arrays, tensors_of
from fedspill.flower.guard_memory import Memory
from fedspill.messages import SERVER, Message, client
from fedspill.seeds import generator
from fedspill.training import LocalTraining

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
    if not defenses:
        raise UsageError("mod needs at least one defense.", remedy="Defenses: fedspill list defenses.")
    plain = LocalTraining()
    for defense in defenses:
        if defense.local(plain) is not plain:
            raise UsageError(
                f"{defense.name} changes how a client trains, which a mod cannot do.",
                remedy="Use it in your training code, or audit it with a plan.",
            )
        if defense.sums_only or type(defense).data is not Defense.data:
            raise UsageError(
                f"{defense.name} does not act on messages, so a mod of it would do nothing.",
                remedy="For secure aggregation use Flower's secaggplus_mod; audit the others with a plan.",
            )
    return Guard(defenses, seed, None if memory is None else Path(memory), arrays_key, architecture, examples)


@dataclass(frozen=True)
class Guard:
    """Sits between the wire and the training code."""

    defenses: tuple[Defense, ...]
    seed: int | None
    memory: Path | None
    arrays_key: str | None
    architecture: Callable[[], nn.Module] | None = None
    examples: Callable[[Context], Examples] | None = None

    def __call__(self, msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        if not msg.has_content() or not msg.content.array_records:
            return call_next(msg, context)  # nothing that could be a model
        memory = Memory(context, "-".join(defense.name for defense in self.defenses), self.memory)
        number = _round(msg, memory)
        try:
            key, record = only_arrays(msg.content, self.arrays_key)
            received = tensors_of(record)
        except FedspillError as error:
            return _refusal(msg, f"the model cannot be read: {error}")
        me = client(_index(context))
        model, found, notes = self._inspect(Message(number, SERVER, me, "model", received), memory, context)
        if model is None:
            memory.note(notes)
            return _refusal(msg, found)
        if model.tensors is not received:
            LOG.warning("fedspill: %s", found)
            msg.content[key] = as_record(model.tensors)
        if msg.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(msg, context)
        memory.note(notes)
        memory.remember(number + 1, model if self._looks_back() else None)
        reply = call_next(msg, context)
        if reply.has_error():
            return reply
        return self._defend(msg, reply, received, model.tensors, number, context)

    def _looks_back(self) -> bool:
        """Whether any defense compares a model with the one before; if none does, there is no need to keep it."""
        return any(type(defense).incoming is not Defense.incoming for defense in self.defenses)

    def _inspect(
        self, model: Message, memory: Memory, context: Context
    ) -> tuple[Message | None, str, dict[int, Mapping[str, Tensor]]]:
        """The model to train on, or None; what was found; and what each defense will remember."""
        found, notes, previous = [], {}, memory.previous()
        own = self.examples(context) if self.examples is not None else None
        for place, defense in enumerate(self.defenses):
            verdict = defense.incoming(model, previous, ClientContext(memory.notes(place), self.architecture, own))
            if verdict.memory is not None:
                notes[place] = verdict.memory
            if verdict.action == "refuse":
                return None, f"{defense.name} refused the model: {verdict.why}", notes
            if verdict.action == "repair":
                found.append(f"{defense.name} repaired the model: {verdict.why}")
                model = verdict.model or model
        return model, "; ".join(found), notes

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
            key, record = only_arrays(reply.content, self.arrays_key)
            update = changes(start, record)
            odd = sorted(name for name in update if name not in start or start[name].shape != update[name].shape)
        except FedspillError as error:
            return _refusal(msg, f"the update cannot be read: {error}")
        if odd:
            return _refusal(msg, f"the update does not fit the model at {', '.join(odd[:8])}; it was not sent")
        message = Message(number, client(_index(context)), SERVER, "update", update)
        defended = message
        for defense in self.defenses:
            defended = defense.outgoing(defended, self._rng(defense, number, _index(context)))
        if defended is message and start is received:
            return reply
        leaving = {name: received[name] + change for name, change in defended.tensors.items()}
        reply.content[key] = as_record({**tensors_of(record), **leaving})
        return reply

    def _rng(self, defense: Defense, number: int, index: int) -> torch.Generator:
        if self.seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        return generator(self.seed, defense.name, number, index)


def _refusal(msg: FlowerMessage, why: str) -> FlowerMessage:
    LOG.warning("fedspill: %s", why)
    return FlowerMessage(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"fedspill: {why}"), reply_to=msg)


def _round(msg: FlowerMessage, memory: Memory) -> int:
    """From 0, as the server says it; where it does not, as often as this client has trained."""
    for config in msg.content.config_records.values():
        said = config.get("server-round")
        if isinstance(said, int) and said > 0:
            return said - 1
    return memory.rounds()


def _index(context: Context) -> int:
    """The partition where the node has one, else the node itself."""
    return int(context.node_config.get("partition-id", context.node_id))
