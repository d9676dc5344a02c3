"""What a registered thing or an adversary is, in words."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from fedspill.errors import UnknownName
from fedspill.registry import Entry, Family, entries, load
from fedspill.threat import ADVERSARIES, KNOWLEDGE, POWERS, Needs, ThreatModel


def explain(name: str) -> dict[str, Any]:
    """Name, kind, title, paper, description, needs and options; of an adversary what it sees, knows and does.

    Where two kinds share a name, "models/custom" says which is meant.
    """
    if name in ADVERSARIES:
        return _adversary(ADVERSARIES[name])
    every = [entry for family in get_args(Family) for entry in entries(family)]
    found = [entry for entry in every if name in (entry.name, f"{entry.family}/{entry.name}")]
    if not found:
        known = [*ADVERSARIES, *(entry.name for entry in every)]
        raise UnknownName("attack, defense, data set, model, ... or adversary", name, known)
    facts = _registered(found[0])
    if found[1:]:
        facts["see also"] = [f"{entry.family}/{entry.name}" for entry in found[1:]]
    return facts


def _registered(entry: Entry) -> dict[str, Any]:
    kind = load(entry.family, entry.name)
    return {
        "name": entry.name,
        "kind": entry.family,
        "title": entry.title,
        "paper": entry.paper,
        "about": entry.about,
        "needs": _needs(kind.needs) if entry.family == "attacks" else [],
        "options": _options(kind),
    }


def _adversary(threat: ThreatModel) -> dict[str, Any]:
    return {
        "name": threat.name,
        "kind": "adversaries",
        "title": threat.title,
        "sees": [str(channel) for channel in sorted(threat.sees)],
        "knows": [f"{word}: {KNOWLEDGE[word]}" for word in sorted(threat.knows)],
        "does": [POWERS[word] for word in sorted(threat.does)] or ["follows the protocol"],
    }


def _needs(needs: Needs) -> list[str]:
    words = [f"to see {' or '.join(sorted(group))} messages" for group in needs.sees]
    words += [f"to know {KNOWLEDGE[word]}" for word in sorted(needs.knows)]
    return words + [f"to {POWERS[word]}" for word in sorted(needs.does)]


def _options(kind: type[Any]) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    shown = []
    for item in dataclasses.fields(kind):
        default = "" if item.default is dataclasses.MISSING else f" = {item.default!r}"
        shown.append(f"{item.name}: {item.type}{default}")
    return shown
