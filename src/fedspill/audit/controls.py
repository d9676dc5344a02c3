"""Controls: each attack, by each adversary, where it must find something and where there is nothing to find.

The positive control is a tiny federation that surely leaks, a plan that the leak (or the attack itself)
brings. The negative control is the same federation with the truth of its origins swapped: the messages of one batch
beside the truth of another, its classes renamed. An honest attack then does no better than chance; one that reads the
truth, and a metric that understates chance, are found out. A failed control makes the finding `unscored`: broken never
looks like safe.

Where the model is the user's own, the positive control runs once more with that model and that data in its place. What
comes of it decides nothing, since an attack may rightly find nothing on an architecture; but who reads that it found
nothing in the audit must know whether it can find anything there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fedspill.attack_run import score_guess
from fedspill.audit.matrix import Pair
from fedspill.audit.outcomes import ControlOutcome
from fedspill.audit.planted_run import run_with_plants
from fedspill.audit.result import ControlPart, ScoreFigures
from fedspill.audit.sealed_attack import AttackProcess, SealedAttack
from fedspill.audit.severity import sure_advantage
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import AttackCrashed, FedspillError
from fedspill.guess import Guess
from fedspill.leak import Leak
from fedspill.messages import Kind, Message
from fedspill.metric import Score
from fedspill.seeds import generator
from fedspill.threat import ALTERING
from fedspill.trace import MemoryTrace, Origin, Trace, Truth

SEED = 1
NOT_FOUND = "did not find what surely leaks"


def run_control(pair: Pair, process: AttackProcess, own: OwnModel | None = None) -> ControlOutcome:
    """Both controls: what was expected, what came, and whether the attack passed."""
    facts, leak = pair.facts, pair.leak
    brought = facts.control or leak.control
    if not brought:
        why = f"neither {pair.attack} nor the leak {leak.name} brings a control plan"
        return ControlOutcome(status="errored", why=why)
    plan = check_plan({"seed": SEED, **brought}, f"the control of {pair.attack}")
    try:
        positive, negative = _run(pair, process, Deployment.of(plan))
    except FedspillError as error:
        if facts.active:
            return ControlOutcome(status="errored", why=str(error))
        failed = ControlPart(passed=False, found=None, score=None, why=f"could not run: {error}")
        return ControlOutcome(status="ok", positive=failed, negative=failed)
    on_own = _on_own_model(pair, process, brought, own) if own is not None else None
    return ControlOutcome(status="ok", positive=positive, negative=negative, own_model=on_own)


@dataclass(frozen=True)
class OwnModel:
    """The user's own model, and the data that go through it."""

    plan: Plan
    data_dir: Path | None


def _on_own_model(pair: Pair, process: AttackProcess, brought: Mapping[str, Any], own: OwnModel) -> ControlPart:
    """The positive control with the user's model and data in it."""
    replaced = {"data": own.plan.data.model_dump(), "model": own.plan.model.model_dump()}
    try:
        plan = check_plan({"seed": SEED, **brought, **replaced}, f"the control of {pair.attack} on your own model")
        part, _ = _run(pair, process, Deployment.of(plan, own.data_dir))
        # What surely leaks out of the control's own model and data need not leak out of these.
        return part.model_copy(update={"why": "found nothing there"}) if part.why == NOT_FOUND else part
    except AttackCrashed as error:
        return ControlPart(passed=False, found=None, score=None, why=f"is not supported there: {error}")
    except FedspillError as error:
        return ControlPart(passed=False, found=None, score=None, why=f"could not run there: {error.problem}")


def _run(pair: Pair, process: AttackProcess, deployment: Deployment) -> tuple[ControlPart, ControlPart]:
    """The positive and the negative control in one federation.

    The attack runs once, in a process of its own: both controls have the same messages, and it sees nothing else.
    """
    facts, leak = pair.facts, pair.leak
    leaking = MemoryTrace(deployment.protocol())
    attack = SealedAttack(process, pair.attack, pair.options, pair.threat, None if facts.active else pair.threat.me)
    if facts.active:
        leaking, _ = run_with_plants(attack, deployment)
    else:
        deployment.federation(leaking, engine="loop", altering=facts.needed().does & ALTERING).run()
        attack.begin(leaking, deployment.knowledge())
    guess = attack.guess(leak.guess, SEED)
    clients = deployment.shares.clients
    positive = _found(leak, guess, leaking.truth().beside(clients), must=True)
    negative = _found(leak, guess, Swapped(leaking).truth().beside(clients), must=False)
    return positive, negative


def _found(leak: Leak[Any], guess: Guess, truth: Truth, *, must: bool) -> ControlPart:
    """Whether the score lies surely above chance, as it must or must not."""
    metric, outcome = leak.headline, score_guess(leak, guess, truth)
    score = Score.unscored(outcome.why, len(guess.of))
    if metric.name in outcome.measured:
        # A control speaks of its own messages, not of other clients: there each counts by itself.
        score = metric.summarise(outcome.measured[metric.name].measured().each_alone())
    found = score.status == "ok" and sure_advantage(score, metric.perfect) > 0
    if score.status != "ok":
        why = f"not scored: {score.why}"
    elif found:
        why = "found what leaks" if must else "found something where nothing can be found"
    else:
        why = NOT_FOUND if must else "found nothing, as it must be"
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
