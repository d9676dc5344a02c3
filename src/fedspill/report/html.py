"""The report page: one self-contained HTML file, no script, no outside request, every outside string escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedspill.files import write_bytes
from fedspill.terminal import plain
from fedspill.threat import ADVERSARIES


def write_report(path: Path, result: Mapping[str, Any]) -> None:
    write_bytes(path, render(result).encode())


def render(result: Mapping[str, Any]) -> str:
    """The page for an audit's JSON; nothing is on it that is not in there."""
    environment = Environment(
        loader=PackageLoader("fedspill.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain
    environment.filters["percent"] = lambda value: f"{100 * value:.1f} %"
    findings = result["findings"]
    scored = [finding for finding in findings if finding["status"] == "ok"]
    return environment.get_template("report.html").render(
        result=result,
        scored=scored,
        failed=[finding for finding in findings if finding["status"] in ("unscored", "errored")],
        skipped=[finding for finding in findings if finding["status"] == "skipped"],
        worst=scored[0]["severity"] if scored else None,
        adversaries={name: threat.title for name, threat in ADVERSARIES.items()},
    )
