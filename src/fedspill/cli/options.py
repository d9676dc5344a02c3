"""What several commands share: options, the device, JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from fedspill.errors import UsageError

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON to this file.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of real data sets (default: FEDSPILL_DATA, then ./data).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Partial = Annotated[bool, typer.Option(help="Open an unfinished recording up to its last whole round.")]
Level: TypeAlias = Literal["low", "medium", "high", "critical"]
FailOn = Annotated[Level | None, typer.Option(help="Exit 1 when a finding is at or above this severity.")]
Accept = Annotated[Path | None, typer.Option(help="TOML file of accepted findings (id, reason, until).")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write the page to this file.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the JSON to this file.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", help="Also write SARIF to this file.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Also write Markdown to this file.")]


def option_value(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as TOML where it is, else as text."""
    import tomllib

    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"Expected KEY=VALUE, got {text!r}.")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def use_one_thread(device: str) -> None:
    """One torch thread per process, and an early word when the device is not there."""
    import torch

    from fedspill.placement import use_full_precision

    torch.set_num_threads(1)
    use_full_precision()
    refuse_missing_device(device)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_missing_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    if not (device.startswith("cuda") and torch.cuda.is_available()):
        raise UsageError(f"Device {device!r} is not available here.", remedy="Use --device cpu.")


def write_json(path: Path | None, value: object) -> None:
    if path is None:
        return
    from fedspill.files import write_bytes  # it brings torch, which listing does without

    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}.")
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())
