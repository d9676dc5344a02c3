"""Advice: which of the defenses that were run help, what they need, leave and cost, and the lines to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedspill.audit.result import (
    Advice,
    AdvisedDefense,
    Finding,
    LeakChange,
    LeakRow,
    LeakSummary,
    SettingSummary,
    rounded,
)
from fedspill.audit.severity import Severity, State
from fedspill.audit.target import DefenseSetting
from fedspill.defense import Defense
from fedspill.registry import find, load
from fedspill.training import LocalTraining

# What a recommended defense must leave at most, of the way from chance to a perfect guess. Not the severity: that is
# milder for adversaries that need much, and a defense that helps only because of who attacks is none.
GOOD_ENOUGH = 0.1
MOST_LOST = 0.02  # of accuracy: a defense that costs more is named, not recommended

Hook = tuple[str, str]


def needs_of(defense: Defense) -> list[str]:
    """What it takes to have it, read off what it changes."""
    kind, needs = type(defense), []
    if kind.sums_only:
        needs.append("secure aggregation among the clients, or an aggregator that all trust")
    if kind.data is not Defense.data:
        needs.append("public labelled data of every class at every client")
    plain = LocalTraining()
    if kind.local is not Defense.local and defense.local(plain) is not plain:
        needs.append("every client to change its training code")
    elif kind.outgoing is not Defense.outgoing:
        needs.append("every client to alter what it sends")
    if kind.incoming is not Defense.incoming:
        needs.append("every client to check the models it receives")
    return needs


def acts_on(defense: Defense, finding: Finding, sees_updates: bool, alters_model: bool) -> bool:
    """Whether a defense can change what an attack gets: a check of received models stops only who alters them, and
    hiding single updates only who sees them."""
    kind = type(defense)
    changes_what_is_sent = any(
        getattr(kind, hook) is not getattr(Defense, hook) for hook in ("outgoing", "local", "data")
    )
    if changes_what_is_sent:
        return True
    if kind.sums_only:
        return sees_updates
    return alters_model if kind.incoming is not Defense.incoming else True


def advised(name: str, options: Mapping[str, Any]) -> AdvisedDefense:
    setting = DefenseSetting.one(name, options)
    (defense,) = setting.defenses()
    return AdvisedDefense(
        name=name,
        title=find("defenses", name).title,
        options=dict(options),
        setting=setting.label,
        needs=needs_of(defense),
    )


def single_advice(families: Sequence[LeakSummary], rows: Sequence[LeakRow]) -> list[Advice]:
    """Each setting that lowers some leak at little cost, with all that it does to every leak; the best first."""
    tried: dict[str, list[tuple[LeakSummary, SettingSummary]]] = {}
    for family in families:
        for setting in family.settings:
            tried.setdefault(setting.setting, []).append((family, setting))
    before = {row.leak: row for row in rows}
    found = []
    for results in tried.values():
        _, first = results[0]
        lost = -(rounded(first.accuracy_change) or 0.0)
        changes = [_change(before[family.family], setting) for family, setting in results if family.family in before]
        if first.accuracy is None or lost > MOST_LOST or gain(changes) <= 0:
            continue
        defenses = [advised(first.defense, first.options)]
        found.append(
            Advice(
                defenses=defenses,
                changes=changes,
                accuracy=first.accuracy,
                accuracy_change=first.accuracy_change,
                epsilon=first.epsilon,
                plan_lines=plan_lines(defenses),
                flower_lines=flower_lines(defenses),
            )
        )
    return sorted(found, key=lambda advice: (-gain(advice.changes), -(rounded(advice.accuracy_change) or 0.0)))


def gain(changes: Sequence[LeakChange]) -> int:
    """By how many levels leaks come down, less those by which they go up."""
    return sum(_level(change.before) - left(change) for change in changes)


def left(change: LeakChange) -> int:
    """The level that remains; what could not be measured counts as no better than before."""
    if change.state in ("found", "errored"):
        return _level(change.after if change.state == "found" else change.before)
    return 1 if change.state == "undecided" else 0


def unhelped(families: Sequence[LeakSummary]) -> list[str]:
    """Leaks that no affordable setting brings near chance."""
    return [family.family for family in families if not any(map(closes, family.settings))]


def closes(setting: SettingSummary) -> bool:
    """Whether it leaves next to nothing to any attack that was tried, at little cost."""
    blind = setting.attacks > 0 and setting.blinded == setting.attacks
    near_chance = setting.advantage is not None and (rounded(setting.advantage) or 0.0) < GOOD_ENOUGH
    return (
        setting.accuracy is not None
        and -(rounded(setting.accuracy_change) or 0.0) <= MOST_LOST
        and (blind or near_chance)
    )


def _change(row: LeakRow, setting: SettingSummary) -> LeakChange:
    blind = setting.blinded == setting.attacks
    level = setting.severity
    state: State = "undecided" if setting.undecided else "not found"
    if blind or level is None:
        state = "cannot" if blind else "errored"
    elif level > Severity.INFO:
        state = "found"
    return LeakChange(
        leak=row.leak,
        title=row.title,
        before=row.severity,
        after=level if state == "found" else None,
        state=state,
        advantage=setting.advantage,
        adaptive=setting.adaptive,
    )


def _level(severity: Severity | None) -> int:
    return int(Severity.INFO if severity is None else severity)


def plan_lines(defenses: Sequence[AdvisedDefense]) -> str:
    """What to write into a plan."""
    sums = [defense for defense in defenses if load("defenses", defense.name).sums_only]
    blocks = ["[federation]\nsecure_aggregation = true"] if sums else []
    for defense in defenses:
        if defense not in sums:
            options = [f"{key} = {_toml(value)}" for key, value in defense.options.items()]
            blocks.append("\n".join(["[[defenses]]", f"name = {_toml(defense.name)}", *options]))
    return "\n\n".join(blocks)


def flower_lines(defenses: Sequence[AdvisedDefense]) -> str:
    """What to write into a Flower client: a mod for what acts on messages, and in words what a mod cannot do."""
    mods, imports, words = [], [], []
    for advised_defense in defenses:
        kind = load("defenses", advised_defense.name)
        defense: Defense = kind(**advised_defense.options)
        plain = LocalTraining()
        if kind.sums_only:
            imports.append("from flwr.client.mod import secaggplus_mod")
            mods.append("secaggplus_mod")
            words.append("# and the SecAgg+ workflow in the ServerApp")
        elif kind.data is not Defense.data:
            words.append(f"# {advised_defense.setting}: add public samples to what the client trains on")
        elif defense.local(plain) is not plain:
            words.append(f"# {advised_defense.setting}: change the client's training loop")
        else:
            options = ", ".join(f"{key}={value!r}" for key, value in advised_defense.options.items())
            imports.append(f"from {kind.__module__} import {kind.__name__}")
            mods.append(f"mod({kind.__name__}({options}))")
    if any(word.startswith("mod(") for word in mods):
        imports.append("from fedspill.flower import mod")
    app = [f"app = ClientApp(mods=[{', '.join(mods)}])"] if mods else []
    return "\n".join([*sorted(imports), *app, *words])


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
