"""`fedspill list`: what there is, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedspill.cli.options import JsonFile, write_json
from fedspill.cli.terminal import Screen

if TYPE_CHECKING:
    from fedspill.registry import Family


Listable = Literal[
    "leaks", "attacks", "defenses", "metrics", "datasets", "partitions", "models", "adversaries", "papers"
]


def list_(
    what: Annotated[Listable, typer.Argument(help="What to list.")],
    plan: Annotated[
        Path | None, typer.Option(help="Also list what this plan names of your own (module:Class).")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Lists what there is, without importing any of it."""
    from fedspill.registry import entries, find
    from fedspill.threat import ADVERSARIES

    if what == "adversaries":
        found = [{"name": name, "title": threat.title, "paper": ""} for name, threat in ADVERSARIES.items()]
    else:
        listed = [*entries(what), *(find(what, name) for name in (_outside(plan, what) if plan else []))]
        found = [
            {"name": entry.name, "title": entry.title, "paper": entry.paper, "about": entry.about} for entry in listed
        ]
    write_json(json_file, found)
    Screen().table(["name", "title", "paper"], [[item["name"], item["title"], item["paper"]] for item in found])


def _outside(path: Path, what: Family) -> list[str]:
    """The code of others that a plan names, of one kind."""
    from fedspill.deployment.plan import read_plan
    from fedspill.registry import is_outside

    plan = read_plan(path)
    places: dict[str, Sequence[str]] = {
        "attacks": [choice.name for choice in plan.attacks or ()],
        "metrics": [choice.name for choice in plan.metrics or ()],
        "defenses": [choice.name for choice in plan.defenses] + [choice.name for choice in plan.candidates or ()],
        "datasets": [plan.data.name],
        "models": [plan.model.name],
        "partitions": [plan.partition.name],
    }
    return [name for name in dict.fromkeys(places.get(what, ())) if is_outside(name)]
