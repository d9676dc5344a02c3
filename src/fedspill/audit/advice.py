"""Advice: which of the defenses that were run help, what they need, leave and cost, and the lines to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from fedspill.audit.matrix import Pair
from fedspill.audit.result import (
    AccuracyFigures,
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
from fedspill.threat import made_for
from fedspill.training import LocalTraining

# What a recommended defense must leave at most, of the way from chance to a perfect guess. Not the severity: that is
# milder for adversaries that need much, and a defense that helps only because of who attacks is none.
GOOD_ENOUGH = 0.1
MOST_LOST = 0.02  # of accuracy: a defense that costs more is named, not recommended
MOST_TOGETHER = 3  # defenses in one combination: more are not run by anybody
MOST_PROPOSED = 3  # combinations that are run until one keeps what it promises
SINGLE = frozenset({"update", "gradient"})  # kinds of messages that come from one client


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
        needs.append(f"every {'party' if kind.of_private_towers else 'client'} to alter what it sends")
    if kind.of_private_towers and kind.returned is not Defense.returned:
        needs.append("the party with the labels to alter what it sends back")
    if kind.labels is not Defense.labels:
        needs.append("the party with the labels to alter what it trains on")
    if kind.incoming is not Defense.incoming:
        needs.append("every client to check the models it receives")
    return needs


def acts_on(setting: DefenseSetting, pair: Pair) -> bool:
    """Whether some defense of the setting can change what an attack gets, read off what each of them changes.

    A check of received models stops only who alters them, and hiding single updates only who sees them: an attack that
    can do without them may well read them where they are.
    """
    needs = pair.facts.needed()
    if made_for(needs) == "private towers":
        reads_features = any(group & {"embedding", "prediction"} for group in needs.sees)
        return any(_acts_between_parties(type(defense), reads_features) for defense in setting.defenses())
    sees_updates = any(pair.threat.sees_of_others(kind) for kind in SINGLE)
    return any(_acts(type(defense), sees_updates, "alter_model" in needs.does) for defense in setting.defenses())


def _acts_between_parties(kind: type[Defense], reads_features: bool) -> bool:
    """What parties send up tells of features; what is sent back, and what it is made from, of labels."""
    if reads_features:
        return kind.outgoing is not Defense.outgoing
    sent_back = kind.returned is not Defense.returned or (
        kind.outgoing is not Defense.outgoing and not kind.of_private_towers
    )
    return sent_back or kind.labels is not Defense.labels


def _acts(kind: type[Defense], sees_updates: bool, alters_model: bool) -> bool:
    if kind.outgoing is not Defense.outgoing or kind.local is not Defense.local or kind.data is not Defense.data:
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


def proposals(singles: Sequence[Advice]) -> list[DefenseSetting]:
    """Combinations of defenses that help alone, by what they should leave and cost together, the best first.

    What a combination leaves of a leak is taken to be what its best member leaves, and its costs to add up; it is
    then run as one deployment, which is what counts.
    """
    helpful = singles[:8]
    groups = [group for size in range(1, MOST_TOGETHER + 1) for group in combinations(helpful, size)]
    different = [group for group in groups if len({a.defenses[0].name for a in group}) == len(group)]
    affordable = [group for group in different if sum(map(_lost, group)) <= MOST_LOST]
    levels = {change.leak: _level(change.before) + 1.0 for advice in helpful for change in advice.changes}
    ranked = sorted(affordable, key=lambda group: (_left_by(group, levels), len(group), sum(map(_lost, group))))
    settings = []
    for group in ranked[:MOST_PROPOSED]:
        # What hides single updates comes last: the others act on what a client sends before it is summed.
        chosen = sorted(group, key=lambda advice: load("defenses", advice.defenses[0].name).sums_only)
        one = [DefenseSetting.one(advice.defenses[0].name, advice.defenses[0].options) for advice in chosen]
        settings.append(DefenseSetting(tuple(defense for setting in one for defense in setting.chosen)))
    return settings


def _lost(advice: Advice) -> float:
    return max(0.0, -(rounded(advice.accuracy_change) or 0.0))


def _left_by(group: Sequence[Advice], levels: Mapping[str, float]) -> float:
    """The sum over all leaks of the least that any member leaves, in levels; `levels` is where they stand without."""
    least = dict(levels)
    for advice in group:
        for change in advice.changes:
            remains = left(change) + (rounded(change.advantage) or 0.0)
            least[change.leak] = min(least[change.leak], remains)
    return round(sum(least.values()), 1)


def combined_advice(
    setting: DefenseSetting,
    before: Sequence[LeakRow],
    after: Sequence[LeakRow],
    findings: Sequence[Finding],
    accuracy: AccuracyFigures | None,
    accuracy_change: float | None,
    epsilon: float | None,
) -> Advice:
    """What a combination did, leak by leak, when it was run; `findings` are those with it in place."""
    defenses = [advised(defense.name, dict(defense.options)) for defense in setting.chosen]
    rows = {row.leak: row for row in after}
    changes = []
    for row in before:
        now = rows.get(row.leak)
        if now is None or row.state != "found":
            continue
        cells = [cell for cell in now.cells if cell.state == now.state]
        changes.append(
            LeakChange(
                leak=row.leak,
                title=row.title,
                before=row.severity,
                after=now.severity,
                state=now.state,
                advantage=max((rounded(cell.advantage) or 0.0 for cell in cells), default=None),
                adaptive=any("defense" in finding.used for finding in findings if finding.family == row.leak),
            )
        )
    return Advice(
        defenses=defenses,
        changes=changes,
        accuracy=accuracy,
        accuracy_change=accuracy_change,
        epsilon=epsilon,
        plan_lines=plan_lines(defenses),
        flower_lines=flower_lines(defenses),
    )


def keeps_its_promise(advice: Advice) -> bool:
    """Whether a combination that was run lowers leaks and costs little."""
    return advice.accuracy is not None and _lost(advice) <= MOST_LOST and gain(advice.changes) > 0


def gain(changes: Sequence[LeakChange]) -> int:
    """By how many levels leaks come down, less those by which they go up."""
    return sum(_level(change.before) - left(change) for change in changes)


def left(change: LeakChange) -> int:
    """The level that remains; what could not be measured, or not be decided, counts as no better than before."""
    if change.state in ("errored", "undecided"):
        return _level(change.before)
    return _level(change.after) if change.state == "found" else 0


def unhelped(families: Sequence[LeakSummary]) -> list[str]:
    """Leaks that no affordable setting brings near chance."""
    return [family.family for family in families if not any(map(closes, family.settings))]


def closes(setting: SettingSummary) -> bool:
    """Whether it surely leaves next to nothing to any attack that was tried, at little cost."""
    blind = setting.attacks > 0 and setting.blinded == setting.attacks
    measured = setting.advantage is not None and not setting.undecided
    near_chance = measured and (rounded(setting.advantage) or 0.0) < GOOD_ENOUGH
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
    """What to write into a Flower client: a mod for what acts on messages, and in words what a mod cannot do.

    Nothing for what acts between parties with towers of their own: no mod sees their embeddings.
    """
    mods, imports, words = [], [], []
    for advised_defense in defenses:
        kind = load("defenses", advised_defense.name)
        defense: Defense = kind(**advised_defense.options)
        plain = LocalTraining()
        if kind.of_private_towers:
            continue
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
