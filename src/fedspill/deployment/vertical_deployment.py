"""How a deployment differs when it is vertical: one stock of samples, parties with towers, gradients every round."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fedspill.dataset import Dataset
from fedspill.errors import UsageError
from fedspill.federation.local import state_of
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.models.vertical import vertical_net
from fedspill.partitions.iid import IID
from fedspill.partitions.shares import Shares, share_out
from fedspill.partitions.tiles import column_groups
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.trace import Keep, Recorder

if TYPE_CHECKING:
    from fedspill.deployment.deployment import Deployment
    from fedspill.deployment.plan import Plan
    from fedspill.model_spec import ModelSpec


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


def settings_of(deployment: Deployment) -> VerticalSettings:
    federation = deployment.plan.federation
    return VerticalSettings(
        rounds=federation.rounds,
        batches=federation.batches,
        static=federation.static,
        labels=federation.labels,
        training=deployment.settings.training,
        defenses=deployment.settings.defenses,
    )


def federation_of(deployment: Deployment, recorder: Recorder, device: str) -> Vertical:
    (stock,) = deployment.shares.clients
    return Vertical(
        deployment.build_model(), stock, settings_of(deployment), deployment.plan.seed, recorder, device=device
    )


def describe(deployment: Deployment) -> str:
    """One line for people."""
    net = vertical_net(deployment.build_model())
    settings = settings_of(deployment)
    parameters = sum(p.numel() for p in net.parameters())
    model = "stands still" if settings.static else f"trained with {settings.training.optimizer}"
    guards = ", ".join(defense.name for defense in settings.defenses) or "none"
    return (
        f"{deployment.dataset.name}, vertical, {net.parties} parties, {len(deployment.shares.clients[0])} samples in "
        f"{settings.batches} batches of {settings.training.batch_size}, {settings.rounds} rounds, "
        f"{deployment.plan.model.name} with {parameters:,} parameters, {model}, defenses: {guards}"
    )


def protocol_of(deployment: Deployment) -> dict[str, Any]:
    """What is written into the trace of a vertical federation."""
    net = vertical_net(deployment.build_model())
    training = deployment.settings.training
    return {
        "classes": len(deployment.dataset.classes),
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
        "client_count": net.parties,
        "plan": deployment.plan.essence(),
    }


def recording_bytes(deployment: Deployment, keep: Keep) -> int:
    """Every round brings the gradients of all towers, and the model where it moves."""
    net = deployment.build_model()
    one = sum(t.numel() * t.element_size() for n, t in state_of(net).items() if keep.wants_tensor(n))
    rounds = sum(keep.wants_round(number) for number in range(deployment.plan.federation.rounds))
    return one * (rounds + (1 if deployment.plan.federation.static else rounds))
