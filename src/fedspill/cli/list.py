"""`fedspill list`: what there is, by name."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fedspill.cli.options import JsonFile, write_json
from fedspill.cli.terminal import Screen
from fedspill.registry import entries
from fedspill.threat import ADVERSARIES

Listable = Literal[
    "leaks", "attacks", "defenses", "metrics", "datasets", "partitions", "models", "adversaries", "papers"
]


def list_(what: Annotated[Listable, typer.Argument(help="What to list.")], json_file: JsonFile = None) -> None:
    """Lists what there is, without importing any of it."""
    if what == "adversaries":
        found = [{"name": name, "title": threat.title, "paper": ""} for name, threat in ADVERSARIES.items()]
    else:
        found = [{"name": entry.name, "title": entry.title, "paper": entry.paper} for entry in entries(what)]
    write_json(json_file, found)
    Screen().table(["name", "title", "paper"], [[item["name"], item["title"], item["paper"]] for item in found])
