"""record: any Flower strategy, and beside it a trace of what the server sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedspill.adapters.background_writer import RecordingLimits
from fedspill.adapters.protocol import StatedTraining
from fedspill.adapters.round_messages import FactsOfRound
from fedspill.federation.horizontal import Weighting
from fedspill.flower.arrays import Arrays, tensors_of
from fedspill.flower.legacy_strategies import RecordedLegacyStrategy
from fedspill.flower.round_messages import NodeReply, models_sent, reply_of
from fedspill.flower.strategy_recording import LOG, RecordingOptions, StrategyRecording
from fedspill.messages import client
from fedspill.threat import adversary as named_adversary
from fedspill.trace import KEEP_ALL, Keep, Recorder

AnyStrategy = TypeVar("AnyStrategy", bound=Strategy | LegacyStrategy)


def record(
    strategy: AnyStrategy,
    to: Path | str | Recorder,
    *,
    lr: float | None = None,
    batch_size: int | None = None,
    local_epochs: int = 1,
    optimizer: str = "sgd",
    weighting: Weighting = "examples",
    head: str | None = None,
    adversary: str | None = None,
    keep: Keep = KEEP_ALL,
    limits: RecordingLimits | None = None,
    secure_aggregation: bool = False,
    leave_out_unsound: bool = False,
    arrays_key: str | None = None,
    examples_key: str = "num-examples",
    names: Sequence[str] | None = None,
    client_name: Callable[[int], str] = client,
    truth: FactsOfRound | None = None,
) -> AnyStrategy:
    """The same strategy, of a subclass that also records every training round to the folder `to`.

    Training is as without it: nothing is changed, nothing waits for the disk, and whatever fails here is logged, noted
    in the trace and left behind. Flower's round 1 is round 0 of the trace.

    lr, batch_size, local_epochs, optimizer   how clients train, for attacks that need to know it
    weighting           how the strategy weighs clients, for the aggregate in the trace
    head                the last linear layer ("fc3"), or its weight; found by itself where the update shows it
    adversary           who the recording is for, "curious-server" by default: what it does not see is not written
    keep, limits        which rounds, clients and tensors; how many bytes on disk and in memory
    secure_aggregation  replies carry the sum (SecAgg+): record that, and nothing if they turn out to be single updates
    leave_out_unsound   keep NaN, infinities and wrong shapes from the strategy, which would otherwise sum or crash
    arrays_key          the ArrayRecord that holds the model, where messages hold several
    examples_key        the metric that says how many examples a client trained on
    names               of the tensors, where the strategy is of the older kind (flwr.server) that sends bare lists
    client_name         the address of a node in the trace
    truth               (round, addresses in the sum) to the facts of the round, where they are known: in a simulation
    """
    recorded_for = adversary or ("curious-server-secagg" if secure_aggregation else "curious-server")
    options = RecordingOptions(
        to if isinstance(to, Recorder) else Path(to),
        StatedTraining(lr, batch_size, local_epochs, optimizer, weighting),
        head,
        named_adversary(recorded_for),
        keep,
        limits or RecordingLimits(),
        secure_aggregation,
        leave_out_unsound,
        arrays_key,
        examples_key,
        None if names is None else tuple(names),
        client_name,
        truth,
    )
    recording_class = RecordedStrategy if isinstance(strategy, Strategy) else RecordedLegacyStrategy
    combined = type(f"Recorded{type(strategy).__name__}", (recording_class, type(strategy)), {})
    recorded: AnyStrategy = object.__new__(combined)
    vars(recorded).update(vars(strategy), fedspill=StrategyRecording(options))
    return recorded


class RecordedStrategy(Strategy):
    """Comes before the strategy's own class in the order of inheritance: it sees what that class sends and receives."""

    fedspill: StrategyRecording

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        messages = list(super().configure_train(server_round, arrays, config, grid))  # type: ignore[safe-super]
        self.fedspill.note_sent(lambda: models_sent(messages, self.fedspill.options.arrays_key))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrived, options = list(replies), self.fedspill.options
        read = [reply_of(reply, options.arrays_key, options.examples_key) for reply in arrived]
        self.fedspill.note_received(server_round - 1, lambda: read)
        if options.leave_out_unsound:  # whether or not it could be recorded
            arrived = without_unsound(self.fedspill.models, self.fedspill.receivers, read, arrived)
        return super().aggregate_train(server_round, arrived)  # type: ignore[safe-super]

    def start(self, *args: Any, **kwargs: Any) -> Result:
        try:
            return super().start(*args, **kwargs)
        finally:
            self.fedspill.close()


def without_unsound(
    sent: Sequence[Arrays], receivers: Mapping[int, int], read: Sequence[NodeReply], replies: list[FlowerMessage]
) -> list[FlowerMessage]:
    """The replies without those that would spoil or stop the sum. Errors stay: the strategy counts them.

    Each is judged by itself. Of two replies by one node the first counts. Where it is not known what was sent, shapes
    cannot be held against it, and numbers still are.
    """
    models: list[dict[str, Tensor]] | None
    try:
        models = [tensors_of(model) for model in sent] or None
    except Exception as error:
        LOG.error("fedspill: the models sent cannot be read: %s", type(error).__name__)
        models = None
    answered: set[int] = set()

    def passes(reply: NodeReply) -> bool:
        if reply.error.startswith("failed"):
            return True
        first = reply.node not in answered
        answered.add(reply.node)
        if reply.error or reply.fault or not first:
            return False
        if models is None:
            return _is_finite(reply)
        return reply.node in receivers and reply.update_to(models[receivers[reply.node]]).is_sound

    def is_sound(reply: NodeReply) -> bool:
        try:
            return passes(reply)
        except Exception as error:
            LOG.error("fedspill: a reply cannot be judged and is left out: %s", type(error).__name__)
            return False

    return [message for message, reply in zip(replies, read, strict=True) if is_sound(reply)]


def _is_finite(reply: NodeReply) -> bool:
    tensors = tensors_of(reply.arrays).values()
    return bool(reply.arrays) and all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())
