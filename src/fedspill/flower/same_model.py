"""A client mod by which clients find out whether the server handed all of them the same model.

Every client publishes the digest of each model that it was asked to train, 64 characters, on a board that all clients
can read and the server cannot write, and looks at what the others published: for this round as far as they have come,
and for its last round, by when all have. A model that differs is answered with an error.

The board must be out of the server's hands: one that the server runs shows each client what it wants to see. A client
that lies can raise an alarm, and stop a round; it cannot hide one from the others.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final

from flwr.app import ConfigRecord, Context, Error, MessageType
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from fedspill.adapters.digest_board import Board
from fedspill.defenses.model_checks.digests import digest_of, disagreement
from fedspill.errors import FedspillError
from fedspill.flower.arrays import single_array_record, tensors_of

LOG = logging.getLogger("flwr.fedspill")
_LAST = "fedspill.same-model.last"


@final
@dataclass(frozen=True)
class SameModel:
    """The mod: `ClientApp(mods=[SameModel(FolderBoard("/shared/digests"))])`, the first of all mods."""

    board: Board
    arrays_key: str | None = None

    def __call__(self, msg: FlowerMessage, context: Context, call_next: ClientAppCallable) -> FlowerMessage:
        is_training = msg.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_training or not msg.has_content() or not msg.content.array_records:
            return call_next(msg, context)
        try:
            _, record = single_array_record(msg.content, self.arrays_key)
            digest = digest_of(tensors_of(record))
        except FedspillError as error:
            return _refusal(msg, f"the model cannot be read: {error}")
        number = _round_of(msg, context)
        self.board.publish(number, context.node_id, digest)
        wrong = self._about_last(context) or disagreement(digest, self.board.others(number, context.node_id))
        context.state[_LAST] = ConfigRecord({"round": number, "digest": digest})
        return _refusal(msg, wrong) if wrong else call_next(msg, context)

    def _about_last(self, context: Context) -> str:
        """What others have published since for the round that this client took part in before."""
        records = context.state.config_records
        if _LAST not in records:
            return ""
        number, digest = int(str(records[_LAST]["round"])), str(records[_LAST]["digest"])
        found = disagreement(digest, self.board.others(number, context.node_id))
        return f"of round {number}: {found}" if found else ""


def _round_of(msg: FlowerMessage, context: Context) -> int:
    """What the server states, else one more than before. Clients that are told different numbers compare nothing."""
    for config in msg.content.config_records.values():
        stated = config.get("server-round")
        if isinstance(stated, int) and stated > 0:
            return stated
    records = context.state.config_records
    return int(str(records[_LAST]["round"])) + 1 if _LAST in records else 1


def _refusal(msg: FlowerMessage, why: str) -> FlowerMessage:
    LOG.warning("fedspill: %s", why)
    return FlowerMessage(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"fedspill: {why}"), reply_to=msg)
