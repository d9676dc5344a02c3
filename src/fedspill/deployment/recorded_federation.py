"""What a recording shows of its federation: who took part, how often, with how much data, and how the server moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

import torch
from torch import Tensor

from fedspill.errors import NoTwin, UsageError
from fedspill.federation.horizontal import Weighting
from fedspill.messages import Message
from fedspill.trace import Trace
from fedspill.training import Algorithm, LocalTraining, Optimizer

PLAIN = 0.05  # share of a server's move that plain averaging may leave open: rounding, and a client that was left out


@dataclass(frozen=True)
class ServerMove:
    """How the server's model moves: by `rate` times the mean update, but for the share `rest` of the move."""

    rate: float
    rest: float

    @property
    def averages(self) -> bool:
        return self.rest <= PLAIN and self.rate > 0


@dataclass(frozen=True, eq=False)
class RecordedFederation:
    """The facts that a twin copies."""

    blocks: tuple[tuple[int, int], ...]  # (first round, rounds) of what was recorded without a gap
    models: Mapping[int, Mapping[str, Tensor]]  # by round, as handed out
    samples: tuple[int, ...]  # of each client
    per_round: int
    training: LocalTraining
    weighting: Weighting
    secure_aggregation: bool
    server: ServerMove | None  # None: no two rounds in a row

    @property
    def rounds(self) -> int:
        return sum(length for _, length in self.blocks)

    @property
    def numbers(self) -> list[int]:
        """The rounds by their numbers."""
        return [first + step for first, length in self.blocks for step in range(length)]


def recorded_federation(trace: Trace) -> RecordedFederation:
    """Reads it out of messages and protocol; raises NoTwin for what a twin could not do without."""
    protocol = trace.protocol
    if any(message.kind == "batch" for message in trace.messages("batch")):
        raise NoTwin("It is a vertical federation, and twins are of horizontal ones.")
    models: dict[int, Mapping[str, Tensor]] = {}
    for message in trace.messages("model"):
        models.setdefault(message.round, message.tensors)
    if not models:
        raise NoTwin("The recording holds no model that was handed out.")
    kind = "gradient" if protocol.get("algorithm") == "fedsgd" else "update"
    sent = list(trace.messages(kind))  # type: ignore[arg-type]
    sums = list(trace.messages("aggregate"))
    samples, per_round = _clients(sent, sums)
    rounds = sorted({message.round for message in (sent or sums)} & models.keys())
    if not rounds:
        raise NoTwin("The recording holds no round with both a model and what came back.")
    weighting: Weighting = "uniform" if protocol.get("weighting") == "uniform" else "examples"
    training = _training(protocol)
    return RecordedFederation(
        _blocks(rounds),
        models,
        samples,
        per_round,
        training,
        weighting,
        bool(protocol.get("secure_aggregation")) or not sent,
        server_move(models, sums, training),
    )


def server_move(
    models: Mapping[int, Mapping[str, Tensor]], sums: Sequence[Message], training: LocalTraining
) -> ServerMove | None:
    """The multiple of the mean update that explains the server's moves best, and what it leaves open.

    FedAvg leaves nothing open; a server with an optimizer of its own (FedAdam, FedYogi, momentum) most of it.
    """
    along = sizes = moves = 0.0
    for message in sums:
        before, after = models.get(message.round), models.get(message.round + 1)
        if before is None or after is None:
            continue
        sign = -training.lr if training.algorithm == "fedsgd" else 1.0
        for name, total in message.tensors.items():
            if name in before and name in after and not is_buffer(name):
                move, mean = (after[name] - before[name]).double(), sign * total.double()
                along += float((move * mean).sum())
                sizes += float(mean.square().sum())
                moves += float(move.square().sum())
    if not sizes or not moves:
        return None
    return ServerMove(along / sizes, math.sqrt(max(moves - along**2 / sizes, 0.0) / moves))


def is_buffer(name: str) -> bool:
    """Whether a tensor is counted, not trained: what batch norm keeps beside its parameters."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def _blocks(rounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for number in rounds:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return tuple(found)


def _clients(sent: Sequence[Message], sums: Sequence[Message]) -> tuple[tuple[int, ...], int]:
    """Samples of each client, and how many clients a round has."""
    if sent:
        said: dict[str, list[int]] = {}
        rounds: dict[int, int] = {}
        for message in sent:
            said.setdefault(message.sender, []).append(int(message.info.get("examples", 0)))
            rounds[message.round] = rounds.get(message.round, 0) + 1
        samples = tuple(round(median(counts)) for counts in said.values())
        per_round = round(median(rounds.values()))
    else:
        clients = [int(message.info.get("clients", 0)) for message in sums]
        examples = [int(message.info.get("examples", 0)) for message in sums]
        per_round = round(median(clients)) if clients else 0
        samples = (round(median(examples) / per_round),) * per_round if per_round else ()
    if not samples or min(samples) < 1:
        raise NoTwin("The recording does not say how many samples each client trained on.")
    return samples, per_round


def _training(protocol: Mapping[str, Any]) -> LocalTraining:
    """How clients train, as the protocol states it; nothing is guessed."""
    unsaid = [word for word in ("local_lr", "batch_size") if not isinstance(protocol.get(word), int | float)]
    if unsaid:
        raise NoTwin(f"The recording does not say {' or '.join(unsaid)}, which a twin must train with.")
    stated = protocol.get("optimizer", "sgd")
    options = dict(stated) if isinstance(stated, Mapping) else {"name": stated}
    name = options.pop("name", "sgd")
    if name not in get_args(Optimizer):
        raise NoTwin(f"Clients train with {name!r}, and a twin can train with {', '.join(get_args(Optimizer))}.")
    algorithm = protocol.get("algorithm", "fedavg")
    if algorithm not in get_args(Algorithm):
        raise NoTwin(f"The recording is of {algorithm!r}, and a twin is of {' or '.join(get_args(Algorithm))}.")
    try:
        return LocalTraining(
            algorithm=algorithm,
            optimizer=name,
            lr=float(protocol["local_lr"]),
            momentum=float(options.get("momentum", 0.0)),
            weight_decay=float(options.get("weight_decay", 0.0)),
            batch_size=int(protocol["batch_size"]),
            epochs=int(protocol.get("local_epochs") or 1),
        )
    except (UsageError, TypeError, ValueError):
        raise NoTwin("The recording states a way to train that makes no sense.") from None


def mean_update(trace: Trace, number: int) -> dict[str, Tensor]:
    """The round's aggregate where it was recorded, else the plain mean of what was sent."""
    sums = list(trace.messages("aggregate", round=number))
    if sums:
        return {name: tensor.double() for name, tensor in sums[0].tensors.items()}
    sent = [*trace.messages("update", round=number), *trace.messages("gradient", round=number)]
    names = sent[0].tensors if sent else {}
    return {name: torch.stack([message.tensors[name].double() for message in sent]).mean(0) for name in names}
