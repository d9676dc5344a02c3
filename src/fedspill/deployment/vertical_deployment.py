"""How a deployment differs when it is vertical: one stock of samples, parties with towers, gradients every round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedspill.dataset import Dataset, Examples
from fedspill.deployment.plan import Plan
from fedspill.errors import UsageError
from fedspill.federation.horizontal import Settings
from fedspill.federation.local import state_of
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.model_spec import ModelSpec
from fedspill.models.vertical import vertical_net
from fedspill.partitions.iid import IID
from fedspill.partitions.shares import Shares, share_out
from fedspill.partitions.tiles import column_groups
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.trace import Keep, Recorder


def shares_of(plan: Plan, dataset: Dataset) -> Shares:
    """One stock of samples that all parties hold parts of; what the adversary holds is taken out first."""
    rng = generator(plan.seed, "shares")
    held = plan.adversary_data
    shares = share_out(dataset, IID(), 1, auxiliary=held.per_class, shadow=held.shadow, rng=rng)
    (whole,) = shares.clients
    wanted = plan.federation.samples or len(whole)
    if wanted > len(whole):
        raise UsageError(f"{wanted} samples were asked for, {dataset.name} has {len(whole)} to share.")
    stock = whole.take(torch.arange(wanted))
    return replace(shares, clients=(stock,), client_indices=(shares.client_indices[0][:wanted],))


def spec_of(plan: Plan, dataset: Dataset) -> ModelSpec:
    """The model; of a table that names its attributes, one-hot columns of one attribute stay with one party."""
    spec: ModelSpec = make("models", plan.model.name, plan.model.options)
    if plan.model.name == "vertical-mlp" and dataset.columns and "columns" not in plan.model.options:
        parties = int(plan.model.options.get("parties", 2))
        columns = column_groups(dataset.columns, parties, dataset.groups)
        spec = make("models", plan.model.name, {**plan.model.options, "columns": columns})
    return spec


def settings_of(plan: Plan, settings: Settings) -> VerticalSettings:
    federation = plan.federation
    return VerticalSettings(
        rounds=federation.rounds,
        batches=federation.batches,
        static=federation.static,
        labels=federation.labels,
        training=settings.training,
        defenses=settings.defenses,
    )


def federation_of(
    plan: Plan, settings: Settings, model: nn.Module, stock: Examples, recorder: Recorder, device: str
) -> Vertical:
    return Vertical(model, stock, settings_of(plan, settings), plan.seed, recorder, device=device)


def describe(plan: Plan, settings: Settings, model: nn.Module, dataset: Dataset, stock: Examples) -> str:
    """One line for people."""
    net, chosen = vertical_net(model), settings_of(plan, settings)
    parameters = sum(p.numel() for p in net.parameters())
    moves = "stands still" if chosen.static else f"trained with {chosen.training.optimizer}"
    guards = ", ".join(defense.name for defense in chosen.defenses) or "none"
    return (
        f"{dataset.name}, vertical, {net.parties} parties, {len(stock)} samples in "
        f"{chosen.batches} batches of {chosen.training.batch_size}, {chosen.rounds} rounds, "
        f"{plan.model.name} with {parameters:,} parameters, {moves}, defenses: {guards}"
    )


def protocol_of(plan: Plan, settings: Settings, model: nn.Module, dataset: Dataset) -> dict[str, Any]:
    """What is written into the trace of a vertical federation."""
    training = settings.training
    return {
        "classes": len(dataset.classes),
        "head_weight": None,
        "head_bias": None,
        "algorithm": "vertical",
        "weighting": "uniform",
        "secure_aggregation": False,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": 1,
        "optimizer": {
            "name": training.optimizer,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
        },
        "client_count": vertical_net(model).parties,
        "plan": plan.essence(),
    }


def recording_bytes(plan: Plan, model: nn.Module, keep: Keep) -> int:
    """Every round brings the gradients of all towers, and the model where it moves."""
    one = sum(t.numel() * t.element_size() for n, t in state_of(model).items() if keep.wants_tensor(n))
    rounds = sum(keep.wants_round(number) for number in range(plan.federation.rounds))
    return one * (rounds + (1 if plan.federation.static else rounds))
