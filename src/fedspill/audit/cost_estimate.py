"""What an audit would do and cost, told without running it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedspill.audit.defense_frontier import candidates_of
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.federation.local import train
from fedspill.seeds import generator

SECONDS_PER_ATTACK = 1.0  # what an attack is taken to cost before anything is known about it


@dataclass(frozen=True)
class Estimate:
    """The matrix, and at most how many recordings, attacks, minutes and bytes."""

    description: str
    pairs: list[tuple[Pair, list[str]]]
    recordings: int
    attacks: int
    minutes: float
    bytes: int


def estimate(plan: Plan, data_dir: Path | None) -> Estimate:
    """Trains one client once to learn what a round costs; every finding is counted as one to try defenses on."""
    deployment = Deployment.of(plan, data_dir)
    settings = 1 + len(candidates_of(plan))
    pairs = [(pair, pair.lacks()) for pair in pairs_of(plan)]
    runnable = sum(not lacks for _, lacks in pairs)
    recordings, attacks = settings * plan.repeats, settings * plan.repeats * runnable
    clients: float = plan.federation.clients_per_round or plan.federation.clients
    if deployment.is_vertical:  # a round is one batch, not one pass
        clients = plan.training.batch_size / len(deployment.shares.clients[0])
    one_recording = _seconds_of_one_client(deployment) * clients * plan.federation.rounds
    seconds = recordings * one_recording + (attacks + runnable) * SECONDS_PER_ATTACK
    size = deployment.recording_bytes(plan.record.keep()) * recordings
    return Estimate(deployment.describe(), pairs, recordings, attacks, seconds / plan.workers / 60, size)


def _seconds_of_one_client(deployment: Deployment) -> float:
    torch.set_num_threads(1)
    model, training = deployment.build_model(), deployment.settings.training
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    began = time.perf_counter()
    train(model, start, deployment.shares.clients[0], training, generator(0, "estimate"))
    return time.perf_counter() - began
