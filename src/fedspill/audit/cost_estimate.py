"""What an audit would do and cost, told without running it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedspill.audit.advice import acts_on
from fedspill.audit.defense_frontier import candidates_of
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.audit.severity import MAY_BE_CAUGHT
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.federation.local import train
from fedspill.seeds import generator

# Seconds of one core that an attack takes on 60 messages of 5,000 parameters. Measured once (process time, default
# federation with every fifth round recorded, mean over adversaries): the first three, and OTHERS as an upper bound.
# The rest, FOUND and STARTING are guesses that nobody has measured yet.
SECONDS = {
    "composition-by-counts": 3.7,
    "labels": 2.6,
    "decaf": 1.0,
    "planted": 5.0,
    "planted-membership": 5.0,
    "planted-inputs": 0.6,
    "robbing-the-fed": 0.6,
    "trap-weights": 0.6,
    "class-fishing": 1.0,
    "class-sniffing": 1.0,
    "quantity-inference": 1.0,
    "whole-determination": 1.0,
}
OTHERS = 0.2
STARTING = 5.0  # seconds until a worker has imported everything
USUAL_MESSAGES = 60
FOUND = 0.5  # share of the attacks that run which find enough for defenses to be tried on


@dataclass(frozen=True)
class Estimate:
    """The matrix, and about how many recordings, attacks, minutes and bytes."""

    description: str
    pairs: list[tuple[Pair, list[str]]]
    recordings: int
    attacks: int
    minutes: float
    bytes: int


def estimate(plan: Plan, data_dir: Path | None) -> Estimate:
    """Trains one client once to learn what a round costs; what defenses will be tried on is a guess."""
    deployment = Deployment.of(plan, data_dir)
    candidates = candidates_of(plan)
    pairs = [(pair, pair.lacks()) for pair in pairs_of(plan)]
    runnable = [pair for pair, lacks in pairs if not lacks]
    clients: float = plan.federation.clients_per_round or plan.federation.clients
    rounds = len(plan.record.rounds) if plan.record.rounds is not None else plan.federation.rounds
    scale = max(rounds * clients, 1) / USUAL_MESSAGES
    if deployment.is_vertical:  # a round is one batch, not one pass
        clients = plan.training.batch_size / len(deployment.shares.clients[0])
        scale = rounds / USUAL_MESSAGES
    one_recording = _seconds_of_one_client(deployment) * clients * plan.federation.rounds
    costs = {
        # Who alters the model runs a federation of its own, one round for each record that it looks for.
        pair.id: (1 if pair.facts.needed().does & MAY_BE_CAUGHT else scale) * SECONDS.get(pair.attack, OTHERS)
        for pair in runnable
    }
    tried = [sum(costs[pair.id] for pair in runnable if acts_on(setting, pair)) for setting in candidates]
    together = 1 if candidates else 0
    recordings = (1 + len(candidates) + together) * plan.repeats
    once = (1 + together) * sum(costs.values()) + FOUND * sum(tried)
    controls = sum(SECONDS.get(pair.attack, OTHERS) for pair in runnable) / 4
    seconds = recordings * one_recording + plan.repeats * once + controls + STARTING * plan.workers
    attacks = plan.repeats * round((1 + together) * len(runnable) + FOUND * len(candidates) * len(runnable))
    first, others = (deployment.recording_bytes(keep) for keep in (deployment.keep(), plan.record.keep()))
    size = plan.repeats * first + (recordings - plan.repeats) * others
    return Estimate(deployment.describe(), pairs, recordings, attacks, seconds / plan.workers / 60, size)


def _seconds_of_one_client(deployment: Deployment) -> float:
    torch.set_num_threads(1)
    model, training = deployment.build_model(), deployment.settings.training
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    took = []
    for _ in range(2):  # the first one also pays for what torch sets up once
        began = time.process_time()
        train(model, start, deployment.shares.clients[0], training, generator(0, "estimate"))
        took.append(time.process_time() - began)
    return min(took)
