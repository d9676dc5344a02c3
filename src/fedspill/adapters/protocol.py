"""The public facts of a recorded federation, under the names that `Deployment.protocol` uses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedspill.adapters.round_messages import RoundMessages
from fedspill.errors import FedspillError
from fedspill.federation.horizontal import Weighting
from fedspill.observe.find_head import find_head
from fedspill.version import __version__


@dataclass(frozen=True)
class StatedTraining:
    """How clients train, as stated by whoever records; None is not known. Nobody checks it."""

    lr: float | None = None
    batch_size: int | None = None
    epochs: int = 1
    optimizer: str = "sgd"
    weighting: Weighting = "examples"
    client_count: int = 0


@dataclass(frozen=True)
class NamedLinearLayer:
    """A linear layer, by the names of its tensors."""

    weight: str
    bias: str | None
    classes: int


def protocol_of(
    first_round: RoundMessages,
    training: StatedTraining,
    head: str | None,
    adversary: str,
    engine: str,
    log: logging.Logger,
    *,
    secure_aggregation: bool = False,
) -> Mapping[str, Any]:
    """What is written into trace.json; the last layer is found in the first round that was recorded."""
    found = find_last_layer(first_round, head, log)
    return {
        "classes": found.classes if found else None,
        "head_weight": found.weight if found else None,
        "head_bias": found.bias if found else None,
        "algorithm": "fedavg",
        "weighting": training.weighting,
        "secure_aggregation": secure_aggregation,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": training.optimizer,
        "client_count": training.client_count,
        "recorded_by": f"fedspill {__version__} in {engine}",
        "recorded_for": adversary,
    }


def find_last_layer(first_round: RoundMessages, name: str | None, log: logging.Logger) -> NamedLinearLayer | None:
    """The layer of that name; else the one whose update adds up to zero over the classes; else the model's last one."""
    models = [message.tensors for message in first_round.messages if message.kind == "model"]
    if not models:
        return None
    layers = _linear_layers(models[0])
    if name is not None:
        chosen = [layer for layer in layers if name in (layer.weight, layer.weight.rpartition(".")[0])]
        if not chosen:
            known = ", ".join(layer.weight for layer in layers) or "none"
            log.error("fedspill: there is no linear layer named %r; linear weights: %s", name, known)
        return chosen[0] if chosen else None
    shown = [
        _weight_shown_by(message.tensors, layers) for message in first_round.messages if message.kind == "aggregate"
    ]
    chosen = [layer for layer in layers if layer.weight in shown] or layers
    return chosen[-1] if chosen else None


def _weight_shown_by(update: Mapping[str, Tensor], layers: list[NamedLinearLayer]) -> str | None:
    """The weight whose update adds up to zero over the classes; the last layer, mostly the one, is tried first."""
    for candidates in (layers[-1:], layers):
        names = [name for layer in candidates for name in (layer.weight, layer.bias) if name in update]
        try:
            head = find_head({name: update[name].double() for name in names if name is not None})
        except FedspillError:
            continue
        return None if head.transposed else head.weight_name
    return None


def _linear_layers(model: Mapping[str, Tensor]) -> list[NamedLinearLayer]:
    """Two-dimensional weights in the order of the model, each with the bias that belongs to it."""
    names, layers = list(model), []
    for name, following in zip(names, [*names[1:], ""], strict=True):
        weight = model[name]
        if weight.ndim != 2 or not weight.is_floating_point():
            continue
        stem, dot, last = name.rpartition(".")
        # In a bare list of arrays without names, the bias follows its weight.
        bias = f"{stem}{dot}bias" if last == "weight" else following
        fits = bias in model and model[bias].shape == weight.shape[:1]
        layers.append(NamedLinearLayer(name, bias if fits else None, weight.shape[0]))
    return layers
