"""The report page: one self-contained HTML file, no script, no outside request, every outside string escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedspill.report import svg
from fedspill.report.clean import cleaned
from fedspill.threat import KNOWLEDGE

_PNG = re.compile(r"^data:image/png;base64,[A-Za-z0-9+/=]+$")


def render(result: Mapping[str, Any]) -> str:
    """The page for an audit's JSON; nothing is on it that is not in there."""
    result = cleaned(result)
    findings = result["findings"]
    classes = result["classes"]

    def names_of(item: Mapping[str, Any]) -> list[str]:
        given: list[str] = item.get("names") or []
        known = classes if len(classes) == len(given) else [str(index) for index in range(len(given))]
        return [str(name or other) for name, other in zip(given, known, strict=True)]

    matrix: dict[str, dict[str, Any]] = {}
    for finding in findings:
        matrix.setdefault(finding["id"].rpartition("/")[0], {})[finding["adversary"]] = finding
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding["status"] == "skipped":
            skipped.setdefault(finding["why"], []).append(finding["id"])
    worst_of_family: dict[str, str] = {}
    for finding in findings:
        worst_of_family.setdefault(finding["family"], finding["id"])
    return (
        _environment()
        .get_template("report.html")
        .render(
            result=result,
            verdict=result["verdict"],
            scored=[finding for finding in findings if finding["status"] == "ok"],
            failed=[finding for finding in findings if finding["status"] in ("unscored", "errored")],
            skipped=skipped,
            matrix=dict(sorted(matrix.items())),
            adversaries={adversary["name"]: adversary for adversary in result["adversaries"]},
            names_of=names_of,
            worst_of_family=list(worst_of_family.values()),
            plan_text=json.dumps(result["plan"], indent=1, ensure_ascii=False),
        )
    )


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
