"""Every output of an audit, made from its result: what is under a final name is whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedspill.audit.result import AuditResult
from fedspill.errors import UsageError
from fedspill.files import write_bytes
from fedspill.report import html, json, junit, markdown, sarif

NAMES = {
    "html": "report.html",
    "json": "audit.json",
    "sarif": "audit.sarif",
    "junit": "junit.xml",
    "markdown": "report.md",
}


_RENDER = {
    "html": html.render,
    "json": json.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "markdown": markdown.render,
}


def write_all(folder: Path, result: AuditResult, also: Mapping[str, Path]) -> dict[str, Path]:
    """All formats into the folder, and those in `also` to where they are wanted besides."""
    written = {}
    for name, render in _RENDER.items():
        content = render(result).encode()
        places = [folder / NAMES[name]] + ([also[name]] if name in also else [])
        for path in places:
            try:
                write_bytes(path, content)
            except OSError as error:
                raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
        written[name] = folder / NAMES[name]
    return written
