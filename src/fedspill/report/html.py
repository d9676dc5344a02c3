"""The report page: one self-contained HTML file, no script, no outside request, every outside string escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedspill.audit.result import AuditResult
from fedspill.report import svg
from fedspill.report.clean import cleaned
from fedspill.threat import KNOWLEDGE

_PNG = re.compile(r"^data:image/png;base64,[A-Za-z0-9+/=]+$")


def render(result: AuditResult) -> str:
    """The page of an audit; nothing is on it that is not in its JSON."""
    return _environment().get_template("report.html").render(**_page(result))


def first_screen(result: AuditResult) -> str:
    """The top of the page alone, for notebooks."""
    return _environment().get_template("notebook.html").render(**_page(result))


def _page(result: AuditResult) -> dict[str, Any]:
    """What the templates read: the result as it is in the JSON, and a few ways to look at it."""
    shown = cleaned(result).as_json()
    findings, classes = shown["findings"], shown["classes"]

    def names_of(item: Mapping[str, Any]) -> list[str]:
        given: list[str] = item.get("names") or []
        known = classes if len(classes) == len(given) else [str(index) for index in range(len(given))]
        return [str(name or other) for name, other in zip(given, known, strict=True)]

    matrix: dict[str, dict[str, Any]] = {}
    skipped: dict[str, list[str]] = {}
    worst_of_leak: dict[str, str] = {}
    for finding in findings:
        matrix.setdefault(finding["id"].rpartition("/")[0], {})[finding["adversary"]] = finding
        worst_of_leak.setdefault(finding["family"], finding["id"])
        if finding["status"] == "skipped":
            skipped.setdefault(finding["why"], []).append(finding["id"])
    return {
        "result": shown,
        "verdict": shown["verdict"],
        "scored": [finding for finding in findings if finding["status"] == "ok"],
        "failed": [finding for finding in findings if finding["status"] in ("unscored", "errored")],
        "skipped": skipped,
        "matrix": dict(sorted(matrix.items())),
        "adversaries": {adversary["name"]: adversary for adversary in shown["adversaries"]},
        "names_of": names_of,
        "worst_of_leak": list(worst_of_leak.values()),
        "plan_text": json.dumps(shown["plan"], indent=1, ensure_ascii=False),
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedspill.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(num=number, text=_text, known=_known, image=_image)
    environment.globals.update(gauge=svg.gauge, draw=svg.draw, frontier=svg.frontier)
    return environment


def number(value: float | None) -> str:
    """As JSON writes it, so that page and JSON say the same; a dash for what is not there."""
    return "-" if value is None else json.dumps(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _known(word: str) -> str:
    return f"{KNOWLEDGE.get(word, '')} ({word})"


def _image(uri: str) -> str:
    """Only embedded PNG pictures are shown."""
    return uri if _PNG.match(uri) else ""
