"""The audit: every attack that an adversary of the deployment could run, run and scored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedspill.attacks.base import Attack
from fedspill.audit.findings import Finding
from fedspill.audit.plan import Plan
from fedspill.audit.severity import severity
from fedspill.errors import FedspillError, NotApplicable, NotKnown
from fedspill.metrics.base import Metric
from fedspill.registry import entries, make
from fedspill.threat import ADVERSARIES, ThreatModel, adversary
from fedspill.trace import Trace


@dataclass(frozen=True)
class Unit:
    """One attack by one adversary."""

    attack: Attack
    threat: ThreatModel


def adversaries_of(plan: Plan) -> list[ThreatModel]:
    """Those named in the plan, else all that the deployment allows."""
    if plan.adversaries is not None:
        return [adversary(name) for name in plan.adversaries]
    hidden = {"vertical-server"} | (
        {"curious-server", "eavesdropper"} if plan.federation.secure_aggregation else {"curious-server-secagg"}
    )
    return [threat for name, threat in ADVERSARIES.items() if name not in hidden]


def units_of(plan: Plan) -> list[Unit]:
    if plan.attacks is not None:
        attacks = [make("attacks", choice.name, choice.options) for choice in plan.attacks]
    else:
        attacks = [make("attacks", entry.name) for entry in entries("attacks")]
    return [Unit(attack, threat) for threat in adversaries_of(plan) for attack in attacks]


def run_units(units: list[Unit], trace: Trace, knowledge: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    for unit in units:
        yield run_unit(unit, trace, knowledge, seed)


def run_unit(unit: Unit, trace: Trace, knowledge: Mapping[str, Any], seed: int) -> Finding:
    """Runs and scores; the truth is fetched only after the attack has handed over its guess."""
    attack, threat = unit.attack, unit.threat
    blank = Finding(attack.name, attack.title, threat.name, attack.guesses.family, "skipped")
    lacks = threat.missing(attack.needs)
    if lacks:
        return replace(blank, why=f"needs {'; '.join(lacks)}")
    began = time.perf_counter()
    try:
        guess = attack(trace.view(threat, me="client:0", knowledge=knowledge), seed=seed)
    except (NotKnown, NotApplicable) as error:
        return replace(blank, why=str(error))
    except FedspillError as error:
        return replace(blank, status="errored", why=str(error))
    except Exception as error:  # an attack that raises must not end the audit
        return replace(blank, status="errored", why=f"{type(error).__name__} in {attack.name}")
    seconds = time.perf_counter() - began
    metric: Metric = make("metrics", attack.guesses.headline)
    score = metric.score(guess, trace.truth())
    found = replace(blank, metric=metric.name, score=score, seconds=seconds, notes=tuple(guess.notes))
    if score.status == "unscored":
        return replace(found, status="unscored", why=score.why)
    return replace(found, status="ok", severity=severity(score, metric.perfect, threat))
