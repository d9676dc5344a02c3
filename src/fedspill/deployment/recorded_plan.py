"""What a recording says about its deployment, believed no further than that.

A recording comes from outside. The plan in it tells what adversaries may know; it does not choose what is attacked, and
code that it names ("package.module:function", a plug-in) is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import DataMissing, FedspillError, TraceRefused, UsageError
from fedspill.registry import Family, find, is_outside

_DEPLOYMENT = (
    "data", "model", "partition", "federation", "training", "defenses", "adversary_data", "targets", "membership",
    "seed",
)  # fmt: skip


_PATHS = ("path", "folder", "file", "root", "directory")


def recorded_plan(protocol: Mapping[str, Any]) -> Plan | None:
    """The deployment that was recorded; None where the recording does not say, or names code or a path."""
    written = protocol.get("plan")
    if not isinstance(written, dict):
        return None
    kept = {key: written[key] for key in _DEPLOYMENT if key in written}
    if _names_code(kept) or _names_path(kept):
        return None
    try:
        return check_plan(kept, "the plan in the recording")
    except UsageError as error:
        raise TraceRefused(f"The recording does not say what it is of: {error.problem}", remedy=error.remedy) from None


def recorded_deployment(protocol: Mapping[str, Any], data_dir: Path | None) -> Deployment | None:
    """The deployment made again; None where the recording does not say it or its data are not at hand."""
    plan = recorded_plan(protocol)
    try:
        return Deployment.of(plan, data_dir) if plan else None
    except DataMissing:
        return None  # attacks that need data of their own are then skipped, and say so


def _names_code(written: Mapping[str, Any]) -> bool:
    families: dict[str, Family] = {"data": "datasets", "model": "models", "partition": "partitions"}
    chosen: list[tuple[Family, Any]] = [(family, written.get(key)) for key, family in families.items()]
    defenses = written.get("defenses")
    chosen += [("defenses", choice) for choice in (defenses if isinstance(defenses, list) else [])]
    return any(_is_theirs(family, choice) for family, choice in chosen)


def _names_path(value: Any) -> bool:
    """Whether anything in it is a place on a disk: ours is not for a recording to walk through."""
    if isinstance(value, str):
        return "/" in value or "\\" in value or value.startswith(("~", "..")) or value in (".",)
    if isinstance(value, dict):
        return any(key in _PATHS or _names_path(item) for key, item in value.items() if item is not None)
    return any(_names_path(item) for item in value) if isinstance(value, list) else False


def _is_theirs(family: Family, choice: Any) -> bool:
    name = choice.get("name") if isinstance(choice, dict) else choice
    if not isinstance(name, str):
        return False
    if name == "custom" or is_outside(name):
        return True
    try:
        return find(family, name).is_plugin
    except FedspillError:
        return False  # an unknown name is refused when the plan is checked
