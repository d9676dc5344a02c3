"""How a deployment differs when it is vertical: one stock of samples, and parties with towers, shared or private."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedspill.dataset import Dataset, Examples, KnownSamples
from fedspill.deployment.plan import Plan
from fedspill.errors import UsageError
from fedspill.federation.hijack import embedding_kind
from fedspill.federation.horizontal import Settings
from fedspill.federation.local import state_of
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings, foreign_towers
from fedspill.federation.vertical import Vertical, VerticalSettings
from fedspill.model_spec import ModelSpec
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.partitions.iid import IID
from fedspill.partitions.shares import Shares, share_out
from fedspill.partitions.tiles import column_groups, columns_by_name
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.threat import ALTER_RETURNED, ALTER_TRAINING
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
    """The model; of a table that names its attributes, parties hold columns by name, or whole attributes each."""
    spec: ModelSpec = make("models", plan.model.name, plan.model.options)
    if plan.model.name == "vertical-mlp" and dataset.columns:
        if wanted := plan.model.options.get("columns"):
            columns = columns_by_name(dataset.columns, wanted)
        else:
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


def private_federation_of(
    plan: Plan,
    settings: Settings,
    model: nn.Module,
    shares: Shares,
    recorder: Recorder,
    device: str,
    altering: frozenset[str],
) -> PrivateTowers:
    """`altering` is what of threat.ALTERING a malicious participant does."""
    federation, (stock,) = plan.federation, shares.clients
    chosen = PrivateTowerSettings(
        rounds=federation.rounds,
        batches=federation.batches,
        training=settings.training,
        optimizers=tuple(one.training() for one in federation.optimizers),
        predictions=federation.predictions,
        secure_sum=federation.secure_sum,
        hand_over=federation.hand_over,
        defenses=settings.defenses,
    )
    hijacked = shares.shadow.x if ALTER_RETURNED in altering else None
    malicious = ALTER_TRAINING in altering
    return PrivateTowers(
        model, stock, chosen, plan.seed, recorder, device=device, malicious=malicious, hijacked_with=hijacked
    )


def knowledge_of(plan: Plan, model: nn.Module, stock: Examples) -> dict[str, Any]:
    """What the adversaries of private towers are given: party 0 is curious, and what it holds is what others want."""
    net, held = vertical_net(model), plan.adversary_data
    parts = [part.flatten(1) for part in net.parts.split(stock.x)]
    classes = net.head.out_features
    known: dict[str, Any] = {
        "party_features": parts[0],
        "active_features": parts[-1] if net.parties > 1 else parts[0][:, :0],
        "feature_ranges": torch.stack([parts[0].min(0).values, parts[0].max(0).values]),
        "class_prior": torch.bincount(stock.y, minlength=classes).double() / len(stock),
    }
    order = torch.randperm(len(stock), generator=generator(plan.seed, "known samples"))
    if held.known_labels:
        chosen = torch.cat([order[stock.y[order] == label][: held.known_labels] for label in range(classes)])
        known["few_labels"] = KnownSamples(chosen, stock.y[chosen])
    if held.pairs:
        asked = order[order < (plan.federation.predictions or len(stock))][: held.pairs].sort().values
        known["paired_aux"] = KnownSamples(asked, parts[0][asked])
    return known


def describe(plan: Plan, settings: Settings, model: nn.Module, dataset: Dataset, stock: Examples) -> str:
    """One line for people."""
    net, chosen = vertical_net(model), settings_of(plan, settings)
    parameters = sum(p.numel() for p in net.parameters())
    moves = "stands still" if chosen.static else f"trained with {chosen.training.optimizer}"
    if plan.federation.has_private_towers:
        moves += ", towers and head private"
    guards = "".join(f", {defense.name}" for defense in chosen.defenses)
    return (
        f"{dataset.name}, vertical, {net.parties} parties, {len(stock)} samples, {chosen.rounds} rounds "
        f"of {chosen.training.batch_size} ({chosen.batches}), "
        f"{plan.model.name} with {parameters:,} parameters, {moves}{guards}"
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
    if plan.federation.has_private_towers:
        return _private_bytes(plan, vertical_net(model), keep)
    one = sum(t.numel() * t.element_size() for n, t in state_of(model).items() if keep.wants_tensor(n, "gradient"))
    rounds = sum(keep.wants_round(number) for number in range(plan.federation.rounds))
    return one * (rounds + (1 if plan.federation.static else rounds))


def _private_bytes(plan: Plan, net: VerticalNet, keep: Keep) -> int:
    """Every round brings indices, embeddings and returned gradients; every prediction an embedding and its classes."""
    width = len(foreign_towers(net.parties)) * _embedding_width(net)
    rounds = sum(keep.wants_round(number) for number in range(plan.federation.rounds))
    trained = rounds * plan.training.batch_size * (8 + 2 * 4 * width)
    return trained + plan.federation.predictions * (8 + 4 * (width + net.head.out_features))


def _embedding_width(net: VerticalNet) -> int:
    return embedding_kind(net).width
