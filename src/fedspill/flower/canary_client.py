"""A canary client for Flower: audits a server's differential privacy from one client's seat, without its help."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, MessageType
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedspill.adapters.canary_seat import CanaryLog
from fedspill.errors import FedspillError, UsageError
from fedspill.flower.arrays import array_record, single_array_record, tensors_of
from fedspill.flower.guard_memory import GuardMemory
from fedspill.flower.mods import round_number
from fedspill.messages import SERVER, Message, client

LOG = logging.getLogger("flwr.fedspill")


def canary_client(
    clip: float,
    to: Path | str,
    *,
    scale: float = 1.0,
    where: Callable[[Context], bool] = lambda context: True,
    seed: int | None = None,
    arrays_key: str | None = None,
) -> Mod:
    """`ClientApp(mods=[..., canary_client(clip=1.0, to="canary")])`, the last mod, so that the others act on canaries.

    In every round the client sends the model that it was sent plus `scale` times the clip in a direction that only it
    knows, and with the next model it writes down how much of that is there: `to/<run>-<node>.json`. Nothing else is
    changed, and nothing is sent to anybody else. `fedspill.dp_audit.audit_canary_clients` reads the folder.

    clip   the norm that the server says it clips to
    scale  1 measures the noise; 30 tests the clipping, and spoils the model of a server that does not clip
    where  which clients are canaries, where all of them run the same app; the others train as always
    seed   for simulations that shall repeat; without it, directions come from the system's own randomness
    """
    if not (clip > 0 and scale > 0):
        raise UsageError(f"Expected clip > 0 and scale > 0, got {clip} and {scale}.")
    return CanaryMod(clip, Path(to), scale, where, seed, arrays_key)


@dataclass(frozen=True)
class CanaryMod:
    """Lets the client train, so that its answer has the form that the server expects, and puts the canary into it."""

    clip: float
    to: Path
    scale: float
    where: Callable[[Context], bool]
    seed: int | None
    arrays_key: str | None

    def __call__(self, msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        if msg.metadata.message_type.partition(".")[0] != MessageType.TRAIN or not self.where(context):
            return call_next(msg, context)
        memory = GuardMemory(context, "canary", None)
        number, path = round_number(msg, memory), self.to / f"{context.run_id}-{context.node_id}.json"
        log, model = self._log(path, context), None
        try:
            model = tensors_of(single_array_record(msg.content, self.arrays_key)[1])
            before = memory.previous_model()
            if before is not None:
                log = log.scored(memory.rounds_trained() - 1, before.tensors, model)
            log.write(path)
        except FedspillError as error:
            LOG.error("fedspill: this round has no canary: %s", error)
        reply = call_next(msg, context)
        if model is None or reply.has_error():
            return reply
        key, record = single_array_record(reply.content, self.arrays_key)
        sent = log.sent(number, model)
        reply.content[key] = array_record({name: sent.get(name, own) for name, own in tensors_of(record).items()})
        memory.remember(number + 1, Message(number, SERVER, client(0), "model", model))
        return reply

    def _log(self, path: Path, context: Context) -> CanaryLog:
        if path.is_file():
            return CanaryLog.read(path)
        own = secrets.randbits(62) if self.seed is None else self.seed + int(context.node_id)
        return CanaryLog(own, self.clip, self.scale)
