"""The recording of an attack that plants. Its federation is its own: what it plants, honest recordings never hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from fedspill.attack import ActiveAttack, refuse_unfit
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.targets import draw_targets
from fedspill.errors import AttackFailed, NotApplicable
from fedspill.messages import AGGREGATOR, Kind, Message
from fedspill.seeds import generator
from fedspill.threat import ThreatModel
from fedspill.trace import Keep, MemoryTrace, Origin

SINGLE: tuple[Kind, ...] = ("update", "gradient")  # messages of one client
MOST_ROUNDS = 100_000  # that an attack may ask for: a number of others is no order to run for ever

PlantedRun: TypeAlias = tuple[MemoryTrace, dict[str, Any]]  # the recording, and what the adversary knew


class Planter(ABC):
    """Who says what a malicious server plants: an attack in this process, or one in a process of its own."""

    @abstractmethod
    def begin(self, trace: MemoryTrace, knowledge: Mapping[str, Any]) -> None:
        """Before the federation begins."""

    @property
    @abstractmethod
    def threat(self) -> ThreatModel:
        """The adversary."""

    @property
    @abstractmethod
    def for_each_client(self) -> bool:
        """Whether each client is handed a model of its own; known once it has begun."""

    @property
    def tells_apart(self) -> bool:
        """The same, for a server that needs it: one that sees single messages knows whose they are."""
        return self.for_each_client and not any(self.threat.sees_kind(kind) for kind in SINGLE)

    @abstractmethod
    def rounds(self) -> range:
        """The rounds that it plants in."""

    @abstractmethod
    def plant(self, model: Message, rng: torch.Generator) -> Message:
        """What is sent instead of `model`; the trace holds what was said before that round."""


@final
class HerePlanter(Planter):
    """An attack that runs in this process."""

    def __init__(self, attack: ActiveAttack, threat: ThreatModel) -> None:
        refuse_unfit(attack, threat)
        self._attack, self._threat = attack, threat

    @property
    def threat(self) -> ThreatModel:
        return self._threat

    @property
    def for_each_client(self) -> bool:
        return self._attack.for_each_client

    def begin(self, trace: MemoryTrace, knowledge: Mapping[str, Any]) -> None:
        self._trace, self._knowledge = trace, knowledge

    def rounds(self) -> range:
        return self._attack.rounds(self._trace.view(self._threat, knowledge=self._knowledge))

    def plant(self, model: Message, rng: torch.Generator) -> Message:
        return self._attack.plant(model, self._trace.view(self._threat, knowledge=self._knowledge), rng)


def run_planted(attack: ActiveAttack, threat: ThreatModel, deployment: Deployment) -> PlantedRun:
    """The recording of an attack that runs in this process."""
    return run_with_plants(HerePlanter(attack, threat), deployment)


def run_with_plants(planter: Planter, deployment: Deployment) -> PlantedRun:
    """Runs the deployment with a server that plants from its first target's round on; the trace, and what it knows.

    A round before the first target is honest. A planted round is read and thrown away by the server, which goes on from
    its honest model, so that all targets meet the same one. It is run by our own engine, which agrees with Flower's.
    """
    plan = deployment.plan
    trace, knowledge, planted = _begun(planter, deployment)
    own = plan.federation.model_copy(update={"engine": "own"})
    deployment = replace(deployment, plan=plan.model_copy(update={"federation": own}))
    settings = replace(deployment.settings, rounds=planted.stop, clients_per_round=None)
    federation = replace(deployment, settings=settings).federation(trace, device=plan.device)

    def plant(model: Message) -> Message:
        if model.round not in planted:
            return model
        return planter.plant(model, generator(plan.seed, "plant", model.round))

    federation.plant = plant  # type: ignore[union-attr]
    federation.plant_for_each = planter.tells_apart  # type: ignore[union-attr]
    federation.run()
    _note_truth(trace, deployment, planted, len(planted))
    return trace, knowledge


def trainings_of(attack: ActiveAttack, threat: ThreatModel, deployment: Deployment) -> int:
    """How many times a client trains in the federation that the attack would run."""
    _, _, planted = _begun(HerePlanter(attack, threat), deployment)
    return planted.stop * len(deployment.shares.clients)


def _begun(planter: Planter, deployment: Deployment) -> tuple[MemoryTrace, dict[str, Any], range]:
    """An empty recording, what the adversary knows, and the rounds that it wants to plant in."""
    if deployment.plan.federation.kind != "horizontal":
        raise NotApplicable("A model can be planted in a horizontal federation; this one is not.")
    knowledge = deployment.knowledge()
    # A server chooses whom it asks, and one that looks for a record asks everybody.
    protocol = {**deployment.protocol(), "client_count": len(deployment.shares.clients)}
    trace = MemoryTrace(protocol, _seen_by(planter.threat))
    planter.begin(trace, knowledge)
    planted = planter.rounds()
    if len(planted) > MOST_ROUNDS:
        raise AttackFailed(f"It wants to plant in {len(planted):,} rounds; {MOST_ROUNDS:,} is the most.")
    return trace, knowledge, planted


def _seen_by(threat: ThreatModel) -> Keep:
    """Models, sums and, where it sees them, single messages; nothing else is needed, and such a run is long."""
    kinds = {"model", "aggregate"} | {kind for kind in SINGLE if threat.sees_kind(kind)}
    return Keep(kinds=frozenset(kinds))


def _note_truth(trace: MemoryTrace, deployment: Deployment, planted: range, rounds: int) -> None:
    """The attribute and membership of every target, at the sum of the round that looked for it."""
    drawn = draw_targets(deployment.plan, deployment.dataset, deployment.shares.clients)
    at_once = -(-len(drawn.targets) // max(rounds, 1))
    for number in planted:
        group = drawn.targets.group(number, at_once)
        trace.note_truth(Origin(number, AGGREGATOR), "target_values", drawn.values[group])
        trace.note_truth(Origin(number, AGGREGATOR), "target_members", drawn.members[group])
        trace.note_truth(Origin(number, AGGREGATOR), "target_holders", drawn.holders[group])
