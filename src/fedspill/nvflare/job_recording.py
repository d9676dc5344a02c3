"""The recording of one NVFlare job: rounds are gathered as messages pass, and written when they are over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import nvflare
from nvflare.apis.shareable import Shareable

from fedspill.adapters.background_writer import BackgroundWriter, NewTraceFolder
from fedspill.adapters.protocol import StatedTraining, protocol_of
from fedspill.adapters.round_messages import RoundMessages, messages_of_round
from fedspill.errors import FedspillError
from fedspill.nvflare.exchange import parameters_of, round_of
from fedspill.nvflare.site_round import ExamplesStated, SiteReply, SiteRound, is_first, reply_of
from fedspill.round_recorder import address_of
from fedspill.threat import ThreatModel

LOG = logging.getLogger("nvflare.fedspill")


@dataclass(eq=False)
class JobRecording:
    """NVFlare serves clients in threads of its own, so one lock guards the round in hand.

    A round is over when a model of another round is sent, or the job ends. A task is known by NVFlare's id of it, not
    by what a client says of its round.
    """

    to: Path
    training: StatedTraining
    head: str | None
    threat: ThreatModel
    stated: ExamplesStated
    leaves_out: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _round: SiteRound | None = None
    _rounds_of_tasks: dict[str, int] = field(default_factory=dict)
    _writer: BackgroundWriter | None = None

    def note_sent(self, site: str, task: str, sent: Shareable) -> None:
        """A task was handed to a site; one without a model and a round is none of training."""
        number = round_of(sent)
        if number is None:
            return
        try:
            model = parameters_of(sent)
        except FedspillError:
            return
        with self._lock:
            if self._round is not None and self._round.number != number:
                self._write()
            if self._round is None:
                self._round = SiteRound(number)
            self._round.note_sent(site, model.tensors)
            self._rounds_of_tasks[task] = number

    def note_reply(self, site: str, task: str, result: Shareable) -> bool:
        """Notes a result, and says whether it is sound: whether it would spoil a sum."""
        reply = reply_of(site, result, self.stated)
        with self._lock:
            current = self._round
            if current is None or self._rounds_of_tasks.get(task) != current.number:
                # A round that is over is written already, so that a late reply is an event of the present one.
                why = "answered too late" if task in self._rounds_of_tasks else "answered without having been asked"
                if current is not None:
                    current.replies.append(SiteReply(site, error=why))
                return True
            first = is_first(reply, current.replies)
            current.replies.append(reply)
            if reply.error:
                return reply.error.startswith("failed")  # NVFlare knows of those itself
            model = current.models[current.receivers[site]] if site in current.receivers else {}
        return first and not reply.fault and reply.update_to(model).is_sound

    def close(self) -> None:
        """Writes the last round and waits for it."""
        with self._lock:
            self._write()
            writer, self._writer = self._writer, None
        if writer is not None and writer.close():
            LOG.info("fedspill: recorded %d rounds. Next: fedspill audit --trace %s", writer.rounds_recorded, self.to)

    def _write(self) -> None:
        """Hands the round in hand to the background writer."""
        seen, self._round = self._round, None
        if seen is None:
            return
        seen.receivers = dict(sorted(seen.receivers.items()))  # sites ask in any order; the trace has one
        if self._writer is None:
            to_messages = partial(
                messages_of_round,
                client_name=address_of,
                weighting=self.training.weighting,
                leaves_out=self.leaves_out,
            )
            protocol = partial(self._protocol, len(seen.receivers))
            destination = NewTraceFolder(self.to)
            self.to = destination.path
            self._writer = BackgroundWriter(destination, to_messages, protocol, self.threat, LOG)
        self._writer.put(seen)

    def _protocol(self, client_count: int, first_round: RoundMessages) -> Mapping[str, Any]:
        training = replace(self.training, client_count=client_count)
        return protocol_of(first_round, training, self.head, self.threat.name, f"nvflare {nvflare.__version__}", LOG)
