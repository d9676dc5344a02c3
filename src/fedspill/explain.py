"""What a registered thing or an adversary is, in words."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from fedspill.errors import UnknownName
from fedspill.registry import Family, entries, load
from fedspill.threat import ADVERSARIES, KNOWLEDGE, POWERS, Needs, ThreatModel


def explain(name: str) -> dict[str, Any]:
    """Name, kind, title, paper, description, needs and options; of an adversary what it sees, knows and does."""
    if name in ADVERSARIES:
        return _adversary(ADVERSARIES[name])
    known = list(ADVERSARIES)
    for family in get_args(Family):
        for entry in entries(family):
            known.append(entry.name)
            if entry.name == name:
                kind = load(family, name)
                facts: dict[str, Any] = {"name": name, "kind": family, "title": entry.title, "paper": entry.paper}
                facts["about"] = entry.about
                facts["needs"] = _needs(kind.needs) if family == "attacks" else []
                facts["options"] = _options(kind)
                return facts
    raise UnknownName("attack, defense, data set, model, ... or adversary", name, known)


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
