"""Controls: each attack, by each adversary, where it must find something and where there is nothing to find.

The positive control is a tiny federation that surely leaks, a plan that the leak (or the attack itself)
brings. The negative control is the same federation with the truth of its origins swapped: the messages of one batch
beside the truth of another, its classes renamed. An honest attack then does no better than chance; one that reads the
truth, and a metric that understates chance, are found out. A failed control makes the finding `unscored`: broken never
looks like safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor

from fedspill.attack import ActiveAttack, Attack
from fedspill.attack_run import run_attack
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.planted_run import run_planted
from fedspill.audit.result import ControlPart, ScoreFigures
from fedspill.audit.severity import advantage
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import FedspillError
from fedspill.messages import Kind, Message
from fedspill.metric import Score
from fedspill.seeds import generator
from fedspill.trace import MemoryTrace, Origin, Trace, Truth

SEED = 1


def run_control(pair: Pair) -> ControlOutcome:
    """Both controls: what was expected, what came, and whether the attack passed."""
    attack = pair.make()
    brought = attack.control or attack.leak.control
    if not brought:
        why = f"neither {attack.name} nor the leak {attack.leak.name} brings a control plan"
        return ControlOutcome(status="errored", why=why)
    plan = check_plan({"seed": SEED, **brought}, f"the control of {attack.name}")
    deployment = Deployment.of(plan)
    leaking = MemoryTrace(deployment.protocol())
    if isinstance(attack, ActiveAttack):
        try:
            leaking, _ = run_planted(attack, pair.threat, deployment)
        except FedspillError as error:
            return ControlOutcome(status="errored", why=str(error))
    else:
        deployment.federation(leaking, engine="loop").run()
    positive = _found(attack, pair, leaking, deployment, must=True)
    negative = _found(attack, pair, Swapped(leaking), deployment, must=False)
    return ControlOutcome(status="ok", positive=positive, negative=negative)


def _found(attack: Attack, pair: Pair, trace: Trace, deployment: Deployment, *, must: bool) -> ControlPart:
    """Runs the attack and says whether its score lies surely above chance, as it must or must not."""
    metric = attack.leak.headline
    truth = trace.truth().beside(deployment.shares.clients)
    try:
        outcome = run_attack(attack, trace, pair.threat, knowledge=deployment.knowledge(), seed=SEED, truth=truth)
    except FedspillError as error:
        return ControlPart(passed=False, found=None, score=None, why=f"could not run: {error}")
    unscored = Score.unscored(outcome.why, len(outcome.guess.of) if outcome.guess else 0)
    score = outcome.scores.get(metric.name, unscored)
    found = score.status == "ok" and advantage(score, metric.perfect) > 0
    if score.status != "ok":
        why = f"not scored: {score.why}"
    elif found:
        why = "found what leaks" if must else "found something where nothing can be found"
    else:
        why = "did not find what surely leaks" if must else "found nothing, as it must be"
    passed = score.status == "ok" and found == must
    return ControlPart(passed=passed, found=found, score=ScoreFigures.of(metric, score), why=why)


@final
class Swapped(Trace):
    """The messages of a trace beside the truth of other messages."""

    def __init__(self, source: MemoryTrace) -> None:
        self.protocol = source.protocol
        self.events = source.events
        self._source = source

    def messages(self, kind: Kind | None = None, *, round: int | None = None) -> Iterator[Message]:
        return self._source.messages(kind, round=round)

    def truth(self) -> Truth:
        return Truth(swapped(self._source.truth().facts), self._source.truth().clients)


def swapped(facts: Mapping[tuple[Origin, str], Tensor]) -> dict[tuple[Origin, str], Tensor]:
    """Every fact handed on to another origin of the same role, and of facts about labels the classes renamed at random.

    Renamed, because labels that are common in one batch are common in the next: knowing that is no leak of this one.
    """
    result = {}
    groups: dict[tuple[str, str], list[Origin]] = {}
    for origin, name in facts:
        groups.setdefault((origin.sender.partition(":")[0], name), []).append(origin)
    for (_, name), origins in groups.items():
        for index, origin in enumerate(origins):
            fact = facts[origins[index - 1], name]
            if name.startswith("label_") and fact.ndim:  # (..., classes)
                fact = fact[..., torch.randperm(fact.shape[-1], generator=generator(SEED, "swap", *origin))]
            if name == "asked_places":  # (records, 2): each record gets the truth about another
                fact = fact[torch.randperm(len(fact), generator=generator(SEED, "swap", *origin))]
            result[origin, name] = fact
    return result
