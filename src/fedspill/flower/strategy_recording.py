"""What is recorded beside a Flower strategy. Nothing here raises: if it must, training goes on without a record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import flwr

from fedspill.adapters.background_writer import (
    BackgroundWriter,
    GivenRecorder,
    NewTraceFolder,
    RecordingLimits,
    TraceDestination,
)
from fedspill.adapters.protocol import StatedTraining, protocol_of
from fedspill.adapters.round_messages import FactsOfRound, RoundMessages, messages_of_round
from fedspill.flower.arrays import Arrays
from fedspill.flower.round_messages import NodeReply, ServerRound
from fedspill.flower.secure_sums import messages_of_summed_round
from fedspill.threat import ThreatModel
from fedspill.trace import Keep, Recorder

LOG = logging.getLogger("flwr.fedspill")  # below Flower's own logger, so that Flower shows what is logged here


@dataclass(frozen=True)
class RecordingOptions:
    """The arguments of `record`, which says what each means."""

    to: Path | Recorder
    training: StatedTraining
    head: str | None
    threat: ThreatModel
    keep: Keep
    limits: RecordingLimits
    secure_aggregation: bool
    leave_out_unsound: bool
    arrays_key: str | None
    examples_key: str
    names: tuple[str, ...] | None
    client_name: Callable[[int], str]
    truth: FactsOfRound | None


@dataclass(eq=False)
class StrategyRecording:
    """The recording of one strategy; a strategy that is started again gets a new trace."""

    options: RecordingOptions
    _writer: BackgroundWriter | None = None
    _destination: TraceDestination | None = None
    _models: tuple[Arrays, ...] = ()
    _receivers: Mapping[int, int] = field(default_factory=dict)

    @property
    def models(self) -> tuple[Arrays, ...]:
        """What was sent this round; none where it could not be read."""
        return self._models

    @property
    def receivers(self) -> Mapping[int, int]:
        return self._receivers

    def note_sent(self, read_models: Callable[[], tuple[tuple[Arrays, ...], Mapping[int, int]]]) -> None:
        """Notes the models of a round and which node got which; if `read_models` fails, that is logged."""
        try:
            self._models, self._receivers = read_models()
        except Exception as error:
            self._models, self._receivers = (), {}
            LOG.error("fedspill: the models sent cannot be recorded: %s", error)

    def note_received(self, number: int, read_replies: Callable[[], list[NodeReply]]) -> ServerRound | None:
        """Hands the round to the background writer; None where there is nothing to write."""
        if not self._models:
            return None
        try:
            round_seen = ServerRound(number, self._models, self._receivers, tuple(read_replies()))
            if self.options.keep.wants_round(number):
                self._open().put(round_seen)
            return round_seen
        except Exception as error:
            LOG.error("fedspill: round %d is not recorded: %s", number, error)
            return None

    def close(self) -> None:
        """Waits for the last round; a recording that is never closed is finished when the process ends."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        if writer.close() and isinstance(self._destination, NewTraceFolder):
            path = self._destination.path
            LOG.info("fedspill: recorded %d rounds. Next: fedspill audit --trace %s", writer.rounds_recorded, path)

    def _open(self) -> BackgroundWriter:
        if self._writer is None:
            options = self.options
            if isinstance(options.to, Recorder):
                self._destination = GivenRecorder(options.to)
            else:
                self._destination = NewTraceFolder(options.to, options.keep)
            if options.secure_aggregation:
                to_messages = partial(
                    messages_of_summed_round, client_name=options.client_name, facts_of_round=options.truth
                )
            else:
                to_messages = partial(
                    messages_of_round,
                    client_name=options.client_name,
                    facts_of_round=options.truth,
                    weighting=options.training.weighting,
                    leaves_out=options.leave_out_unsound,
                )
            protocol = partial(self._protocol, len(self._receivers))
            self._writer = BackgroundWriter(
                self._destination, to_messages, protocol, options.threat, LOG, options.keep, options.limits
            )
        return self._writer

    def _protocol(self, client_count: int, first_round: RoundMessages) -> Mapping[str, Any]:
        options = self.options
        return protocol_of(
            first_round,
            replace(options.training, client_count=client_count),
            options.head,
            options.threat.name,
            f"flwr {flwr.__version__}",
            LOG,
            secure_aggregation=options.secure_aggregation,
        )
