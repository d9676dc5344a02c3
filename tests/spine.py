"""Small federations for the tests of the spine: blobs of points, a small perceptron, and a trace with all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.errors import FedspillError
from fedspill.federation.horizontal import Horizontal, RoundResult, Settings
from fedspill.leaks.membership.passive.asked_records import AskedRecords
from fedspill.messages import Message
from fedspill.planting.targets import Targets
from fedspill.registry import make
from fedspill.table_schema import NumberField, TableSchema
from fedspill.threat import Channel, ThreatModel
from fedspill.trace import MemoryTrace, Recorder
from fedspill.training import LocalTraining

FEATURES, CLASSES = 6, 5
ROLES = {"model": ("server", "client"), "aggregate": ("aggregator", "server"), "batch": ("server", "party")}


def blobs(samples: int, seed: int, classes: int = CLASSES, features: int = FEATURES) -> Examples:
    """One Gaussian blob per class; inputs are not negative, as pixels are not."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (samples,), generator=rng)
    centres = torch.rand(classes, features, generator=torch.Generator().manual_seed(99))
    return Examples((centres[y] + 0.1 * torch.randn(samples, features, generator=rng)).abs(), y)


def ragged_clients(sizes: Sequence[int] = (7, 13, 16, 9)) -> list[Examples]:
    return [blobs(samples, seed) for seed, samples in enumerate(sizes)]


def network(seed: int = 0, *, classes: int = CLASSES, features: int = FEATURES, **options: Any) -> nn.Module:
    made: nn.Module = make("models", "mlp", {"widths": [8], **options}).build((features,), classes, seed=seed)
    return made


def protocol_of(model: nn.Module, settings: Settings, clients: int, classes: int = CLASSES) -> dict[str, Any]:
    """What a trace of such a federation says about itself."""
    training = settings.training
    return {
        "classes": classes,
        "head_weight": "head.weight",
        "head_bias": "head.bias" if "head.bias" in model.state_dict() else None,
        "algorithm": training.algorithm,
        "weighting": settings.weighting,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": 1 if training.steps or training.algorithm == "fedsgd" else training.epochs,
        "optimizer": training.optimizer,
        "client_count": settings.clients_per_round or clients,
    }


def federation(
    clients: Sequence[Examples] | None = None,
    *,
    training: LocalTraining | None = None,
    model: nn.Module | None = None,
    recorder: Recorder | None = None,
    seed: int = 3,
    tamper: Callable[[int, Message], Message] | None = None,
    engine: Any = "auto",
    workers: int = 1,
    **settings: Any,
) -> Horizontal:
    clients = ragged_clients() if clients is None else clients
    chosen = Settings(**{"rounds": 2, "training": training or LocalTraining(batch_size=4), **settings})
    return Horizontal(
        network() if model is None else model,
        clients,
        chosen,
        seed=seed,
        classes=CLASSES,
        tamper=tamper,
        engine=engine,
        workers=workers,
        **({} if recorder is None else {"recorder": recorder}),
    )


def recorded(
    clients: Sequence[Examples] | None = None, *, model: nn.Module | None = None, **options: Any
) -> tuple[MemoryTrace, list[RoundResult]]:
    """A federation that was run, and its trace."""
    clients = ragged_clients() if clients is None else clients
    model = network() if model is None else model
    trace = MemoryTrace()
    made = federation(clients, model=model, recorder=trace, **options)
    trace.protocol |= protocol_of(model, made.settings, len(clients))
    return trace, made.run()


def knowledge() -> dict[str, Any]:
    """Everything that an adversary of such a federation could ever know beside the protocol."""
    auxiliary = blobs(60, seed=1000)
    return {
        "architecture": partial(network, seed=77),
        "samples": 16,
        "labels_per_client": CLASSES,
        "unlabelled_aux": auxiliary.x,
        "aux_data": auxiliary,
        "shadow_data": blobs(80, seed=1001),
        "targets": targets(),
        "asked_records": asked(),
        "defense": (),
        "own_data": ragged_clients()[0],
        "table_schema": schema(),
    }


def schema(features: int = FEATURES) -> TableSchema:
    """Blobs as a table: every feature is a number of its own."""
    return TableSchema(tuple(NumberField(f"feature{place}", place) for place in range(features)))


def targets() -> Targets:
    """Two records to look for, one in each round; whether their first feature is large is not known."""
    records = blobs(2, seed=1002)
    return Targets(records.x * (torch.arange(FEATURES) > 0), records.y, first=0, column=0, masked=(0,))


def asked() -> AskedRecords:
    """Six records that a client holds, and six that nobody does."""
    records = Examples.join([blobs(6, seed=1), blobs(6, seed=1003)])
    return AskedRecords(records.x, records.y)


def attempt(action: Callable[[], Any]) -> Any:
    """What the action returns, or the refusal that it raises; any other exception goes through."""
    try:
        return action()
    except FedspillError as refusal:
        return refusal


def fitting_adversary(attack: Attack) -> ThreatModel:
    """The least adversary that the attack accepts: it sees one kind of each group, knows and does what is asked."""
    kinds = [sorted(group)[-1] for group in attack.needs.sees]
    channels = {Channel(kind, *ROLES.get(kind, ("client", "server"))) for kind in kinds}
    return ThreatModel("least", frozenset(channels), attack.needs.knows, attack.needs.does)
