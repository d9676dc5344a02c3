"""Controls: each attack, by each adversary, where it must find something and where there is nothing to find.

The positive control is a tiny federation that surely leaks, a plan that the guess's family (or the attack itself)
brings. The negative control is the same federation with the truth of its origins swapped: the messages of one batch
beside the truth of another, its classes renamed. An honest attack then does no better than chance; one that reads the
truth, and a metric that understates chance, are found out. A failed control makes the finding `unscored`: broken never
looks like safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor

from fedspill.attacks.base import ActiveAttack, Attack
from fedspill.audit.deployment import Deployment
from fedspill.audit.findings import score_json
from fedspill.audit.matrix import Pair
from fedspill.audit.plan import check_plan
from fedspill.audit.severity import advantage
from fedspill.audit.siege import besiege
from fedspill.errors import FedspillError
from fedspill.messages import Kind, Message
from fedspill.metrics.base import Metric
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.trace import MemoryTrace, Origin, Trace, Truth

SEED = 1


def run_control(pair: Pair) -> dict[str, Any]:
    """Both controls: what was expected, what came, and whether the attack passed."""
    attack = pair.make()
    brought = attack.control or attack.guesses.control
    if not brought:
        return {
            "status": "errored",
            "why": f"neither {attack.name} nor {attack.guesses.__name__} brings a control plan",
        }
    plan = check_plan({"seed": SEED, **brought}, f"the control of {attack.name}")
    deployment = Deployment.of(plan)
    leaking = MemoryTrace(deployment.protocol())
    if isinstance(attack, ActiveAttack):
        try:
            leaking, _ = besiege(attack, pair.threat, deployment)
        except FedspillError as error:
            return {"status": "errored", "why": str(error)}
    else:
        deployment.federation(leaking, engine="loop").run()
    positive = _found(attack, pair, leaking, deployment, must=True)
    negative = _found(attack, pair, Swapped(leaking), deployment, must=False)
    return {"status": "ok", "positive": positive, "negative": negative}


def _found(attack: Attack, pair: Pair, trace: Trace, deployment: Deployment, *, must: bool) -> dict[str, Any]:
    """Runs the attack and says whether its score lies surely above chance, as it must or must not."""
    metric: Metric = make("metrics", attack.guesses.headline)
    try:
        view = trace.view(pair.threat, me="client:0", knowledge=deployment.knowledge())
        score = metric.score(attack(view, seed=SEED), trace.truth().beside(deployment.shares.clients))
    except FedspillError as error:
        return {"passed": False, "found": None, "score": None, "why": f"could not run: {error}"}
    found = score.status == "ok" and advantage(score, metric.perfect) > 0
    if score.status != "ok":
        why = f"not scored: {score.why}"
    elif found:
        why = "found what leaks" if must else "found something where nothing can be found"
    else:
        why = "did not find what surely leaks" if must else "found nothing, as it must be"
    passed = score.status == "ok" and found == must
    return {"passed": passed, "found": found, "score": score_json(metric.name, score, True), "why": why}


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
            result[origin, name] = fact
    return result
