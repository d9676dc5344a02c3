"""The matrix: which adversaries a deployment has, which attacks there are, and which of them each could run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedspill.audit.sealed_attack import AttackFacts, facts_of, leak_of
from fedspill.deployment.deployment import OFFERED
from fedspill.deployment.plan import Plan
from fedspill.errors import FedspillError
from fedspill.leak import Leak
from fedspill.registry import Entry, entries, find, load
from fedspill.threat import (
    ADVERSARIES,
    ALTER_RETURNED,
    ALTER_TRAINING,
    KNOWLEDGE,
    MALICIOUS_ACTIVE_PARTY,
    MALICIOUS_PARTY,
    MALICIOUS_SERVER_UPDATES,
    OF_PRIVATE_TOWERS,
    VERTICAL_SERVER,
    ThreatModel,
    adversary,
    made_for,
    stands_in,
)

# A server sees single updates, or, behind secure aggregation, sums; one deployment has one of each two.
_IN_THE_CLEAR = {"curious-server", "eavesdropper", "malicious-server-updates"}
_BEHIND_SUMS = {"curious-server-secagg", "malicious-server"}


@dataclass(frozen=True)
class Pair:
    """One attack, with the options that make it, by one adversary."""

    attack: str
    adversary: str
    options: dict[str, Any]  # all of them, defaults too: what made the result
    given: dict[str, Any] = field(default_factory=dict)  # those that the plan names
    without: tuple[str, ...] = ()  # knowledge that adversaries may have, and that this plan gives to none

    def __post_init__(self) -> None:
        object.__setattr__(self, "without", tuple(self.without))  # a list, where it comes from JSON

    @property
    def id(self) -> str:
        """The name that a person, an accept file and a comparison know it by."""
        return f"{self.attack}{shown(self.given)}/{self.adversary}"

    @property
    def facts(self) -> AttackFacts:
        """What the attack says of itself."""
        return facts_of(self.attack, self.options)

    @property
    def leak(self) -> Leak[Any]:
        return leak_of(self.attack, self.options, self.facts)

    @property
    def threat(self) -> ThreatModel:
        return adversary(self.adversary)

    def lacks(self) -> list[str]:
        """What keeps this adversary from running this attack; empty when it can."""
        needs = self.facts.needed()
        unsaid = sorted((needs.knows & self.threat.knows) - OFFERED)
        stands, made = stands_in(self.threat), made_for(needs)
        if stands != "horizontal" and made == "horizontal":
            return ["a horizontal federation: it reads clients, not parties"]
        if stands == "private towers" and made == "shared towers":
            return ["a vertical federation whose model is handed out to all"]
        if self.threat == MALICIOUS_PARTY and ALTER_TRAINING not in needs.does:
            return ["nothing but to follow the protocol: it is run by a curious party"]
        if self.threat == MALICIOUS_ACTIVE_PARTY and ALTER_RETURNED not in needs.does:
            return ["nothing but to follow the protocol: it is run by the active party"]
        if self.adversary == MALICIOUS_SERVER_UPDATES.name and not needs.does:
            return ["nothing but to follow the protocol: it is run by the curious server"]
        absent = sorted(needs.knows & self.threat.knows & set(self.without))
        return [
            *self.threat.missing(needs),
            *(f"to know {KNOWLEDGE[word]} ({word}): no plan says it" for word in unsaid),
            *(f"to know {KNOWLEDGE[word]} ({word}): this plan sets none aside" for word in absent),
        ]


def shown(options: dict[str, Any]) -> str:
    """Options in brackets, or nothing."""
    return f"[{','.join(f'{key}={value}' for key, value in sorted(options.items()))}]" if options else ""


def adversaries_of(plan: Plan, secure_aggregation: bool | None = None) -> list[ThreatModel]:
    """Those named in the plan, else all that the deployment (or the recording of one) allows."""
    if plan.adversaries is not None:
        return [adversary(name) for name in dict.fromkeys(plan.adversaries)]
    if plan.federation.kind == "vertical":
        return _of_private_towers(plan) if plan.federation.has_private_towers else [VERTICAL_SERVER]
    secure = plan.federation.secure_aggregation if secure_aggregation is None else secure_aggregation
    hidden = _IN_THE_CLEAR if secure else _BEHIND_SUMS
    here = [threat for threat in ADVERSARIES.values() if stands_in(threat) == "horizontal"]
    return [threat for threat in here if threat.name not in hidden]


def _of_private_towers(plan: Plan) -> list[ThreatModel]:
    """A server hijacks the one client of split learning; where there are several parties, nobody does."""
    return [threat for threat in OF_PRIVATE_TOWERS if threat != MALICIOUS_ACTIVE_PARTY or plan.is_split_learning]


def pairs_of(plan: Plan, secure_aggregation: bool | None = None) -> list[Pair]:
    """Every attack by every adversary, fitting or not."""
    if plan.attacks is not None:
        chosen = [(choice.name, choice.options) for choice in plan.attacks]
    else:
        chosen = [(entry.name, {}) for entry in entries("attacks") if _is_asked(entry, plan)]
    pairs, without = [], _set_aside_none(plan)
    for name, given in chosen:
        options = _all_options(name, given)
        threats = adversaries_of(plan, secure_aggregation)
        pairs += [Pair(name, threat.name, options, given, without) for threat in threats]
    return list({pair.id: pair for pair in pairs}.values())


def _is_asked(entry: Entry, plan: Plan) -> bool:
    """Whether the attack is on a leak that this kind of federation can have; code of others is always asked."""
    if entry.is_plugin:
        return True
    leak: Leak[Any] = load("attacks", entry.name).leak
    return plan.federation.vertical_or_not in leak.federations and (
        plan.is_split_learning or not leak.split_learning_only
    )


def _set_aside_none(plan: Plan) -> tuple[str, ...]:
    """The kinds of data that this plan gives to no adversary."""
    held = plan.adversary_data
    given_out = {
        "shadow_data": held.shadow,
        "aux_data": held.per_class,
        "unlabelled_aux": held.per_class,
        "few_labels": held.known_labels,
        "paired_aux": held.pairs,
    }
    return tuple(word for word, amount in given_out.items() if not amount)


def _all_options(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Defaults too. A plug-in that cannot be loaded has none; running it will say what is wrong with it."""
    try:
        return facts_of(name, given).options
    except FedspillError:
        if not find("attacks", name).is_plugin:
            raise
        return dict(given)
