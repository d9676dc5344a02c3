"""The fingerprint of the code that makes results: ours, that of plug-ins, and the user's own model and data code."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedspill.deployment.plan import Plan

_FUNCTION = re.compile(r"^([A-Za-z_][\w.]*):[A-Za-z_][\w.]*$")
_REPORT_ONLY = ("report", "cli", "__main__.py")  # changes no result


def fingerprint(plan: Plan) -> str:
    """Results are used again only where this has not changed."""
    digest = hashlib.sha256()
    for path in _files(plan):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _files(plan: Plan) -> list[Path]:
    package = Path(__file__).parents[1]
    ours = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in _REPORT_ONLY]
    plugins = [
        point.value
        for family in ("leaks", "attacks", "defenses", "metrics", "datasets", "partitions", "models")
        for point in entry_points(group=f"fedspill.{family}")
    ]
    theirs = {path for name in [*plugins, *_strings(plan.essence())] for path in _source(name)}
    return [*sorted(ours), *sorted(theirs)]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _source(name: str) -> list[Path]:
    """The file behind "package.module:function", if it is one."""
    found = _FUNCTION.match(name)
    if not found:
        return []
    try:
        spec = importlib.util.find_spec(found[1])
    except (ImportError, ValueError):
        return []
    return [Path(spec.origin)] if spec and spec.origin and spec.origin.endswith(".py") else []
