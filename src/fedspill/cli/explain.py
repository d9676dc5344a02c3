"""`fedspill explain`: what a registered thing or an adversary is, in words."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedspill.cli.options import JsonFile, write_json
from fedspill.cli.terminal import Screen
from fedspill.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from fedspill.registry import Entry
    from fedspill.threat import Needs, ThreatModel


def explain(
    name: Annotated[str, typer.Argument(help="The name of anything that `list` shows, or module:Class of your own.")],
    json_file: JsonFile = None,
) -> None:
    """Says what a thing is, where it comes from, what it needs and which options it takes."""
    about = facts_about(name)
    write_json(json_file, about)
    Screen().facts(about)


def facts_about(name: str) -> dict[str, Any]:
    """Name, kind, title, paper, description, needs and options; of an adversary what it sees, knows and does.

    Where two kinds share a name, "models/custom" says which is meant.
    """
    from fedspill.registry import Family, entries, is_outside
    from fedspill.threat import ADVERSARIES

    if name in ADVERSARIES:
        return _adversary(ADVERSARIES[name])
    if is_outside(name):
        from fedspill.deployment.plan import make_importable

        make_importable(Path.cwd())
        return _outside(name)
    every = [entry for family in get_args(Family) for entry in entries(family)]
    found = [entry for entry in every if name in (entry.name, f"{entry.family}/{entry.name}")]
    if not found:
        known = [*ADVERSARIES, *(entry.name for entry in every)]
        raise UnknownName("attack, defense, data set, model, ... or adversary", name, known)
    facts = _registered(found[0])
    if found[1:]:
        facts["see also"] = [f"{entry.family}/{entry.name}" for entry in found[1:]]
    return facts


def _outside(name: str) -> dict[str, Any]:
    """Code of the user's own: its base class tells what it is."""
    from fedspill.attack import Attack
    from fedspill.dataset import DataSource
    from fedspill.defense import Defense
    from fedspill.metric import Metric
    from fedspill.registry import Family, find, load

    kind = load("attacks", name)
    bases: dict[Family, type] = {"attacks": Attack, "defenses": Defense, "metrics": Metric, "datasets": DataSource}
    for family, base in bases.items():
        if issubclass(kind, base):
            return _registered(find(family, name))
    raise UsageError(f"{name!r} is no attack, defense, metric or data set.")


def _registered(entry: Entry) -> dict[str, Any]:
    from fedspill.registry import load

    if entry.family == "leaks":
        return _leak(entry)
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


def _leak(entry: Entry) -> dict[str, Any]:
    from fedspill.leak import Leak
    from fedspill.registry import load_leak

    leak: Leak[Any] = load_leak(entry.name)
    return {
        "name": leak.name,
        "kind": "leaks",
        "title": leak.title,
        "paper": "",
        "about": leak.question,
        "needs": [],
        "guess": inspect.cleandoc(leak.guess.__doc__ or ""),
        "metrics": [f"{metric.name}: {metric.title}" for metric in leak.metrics],
        "taxonomy": [f"nearest in {list_}: {number}" for list_, number in leak.taxonomy.items()],
    }


def _adversary(threat: ThreatModel) -> dict[str, Any]:
    from fedspill.threat import KNOWLEDGE, POWERS

    return {
        "name": threat.name,
        "kind": "adversaries",
        "title": threat.title,
        "sees": [str(channel) for channel in sorted(threat.sees)],
        "knows": [f"{word}: {KNOWLEDGE[word]}" for word in sorted(threat.knows)],
        "does": [POWERS[word] for word in sorted(threat.does)] or ["follows the protocol"],
    }


def _needs(needs: Needs) -> list[str]:
    from fedspill.threat import KNOWLEDGE, POWERS

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
