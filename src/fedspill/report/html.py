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
from fedspill.report.figures import three
from fedspill.report.first_screen import first_screen as first_screen_of
from fedspill.report.first_screen import shown_advice
from fedspill.threat import KNOWLEDGE, POWERS

_PNG = re.compile(r"^data:image/png;base64,[A-Za-z0-9+/=]+$")


def render(result: AuditResult) -> str:
    """The page of an audit; nothing is on it that is not in its JSON."""
    return environment().get_template("report.html").render(**_page(result))


def first_screen(result: AuditResult) -> str:
    """The top of the page alone, for notebooks."""
    return environment().get_template("notebook.html").render(**_page(result) | {"links": False})


def _page(result: AuditResult) -> dict[str, Any]:
    """What the templates read: the result as it is in the JSON, and a few ways to look at it."""
    clean = cleaned(result)
    shown = clean.as_json()
    findings, classes = shown["findings"], shown["classes"]
    by_id = {finding["id"]: finding for finding in findings}

    def names_of(item: Mapping[str, Any]) -> list[str]:
        given: list[str] = item.get("names") or []
        if item["kind"] == "clients":
            return given
        known = classes if len(classes) == len(given) else [str(index) for index in range(len(given))]
        return [str(name or other) for name, other in zip(given, known, strict=True)]

    def best_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The findings that the cells of a leak speak of, each once."""
        named = dict.fromkeys(cell["finding"] for cell in row["cells"] if cell["figure"])
        return [by_id[name] for name in named if name in by_id]

    def others_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        best = {finding["id"] for finding in best_of(row)}
        own = [f for f in findings if f["family"] == row["leak"] and f["status"] == "ok"]
        return [finding for finding in own if finding["id"] not in best]

    matrix: dict[str, dict[str, Any]] = {}
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        matrix.setdefault(finding["id"].rpartition("/")[0], {})[finding["adversary"]] = finding
        if finding["status"] == "skipped":
            skipped.setdefault(finding["why"], []).append(finding["id"])
    advised = ([clean.after.advice] if clean.after else []) + clean.advice
    advised = list({tuple(d.setting for d in advice.defenses): advice for advice in reversed(advised)}.values())[::-1]
    return {
        "result": shown,
        "screen": first_screen_of(clean),
        "links": True,
        "verdict": shown["verdict"],
        "failed": [finding for finding in findings if finding["status"] in ("unscored", "errored")],
        "skipped": skipped,
        "matrix": dict(sorted(matrix.items())),
        "by_id": by_id,
        "best_of": best_of,
        "others_of": others_of,
        "families": {family["family"]: family for family in shown["families"]},
        "adversaries": {adversary["name"]: adversary for adversary in shown["adversaries"]},
        "names_of": names_of,
        "advised": [shown_advice(advice, result.accuracy) for advice in advised],
        "plan_text": json.dumps(shown["plan"], indent=1, ensure_ascii=False),
    }


def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fedspill.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(num=number, three=three, text=_text, known=_known, power=_power, image=_image, slug=_slug)
    made.filters["capitalize_first"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    made.globals.update(gauge=svg.gauge, draw=svg.draw, frontier=svg.frontier, dots=svg.dots)
    return made


def number(value: float | None) -> str:
    """As JSON writes it, so that page and JSON say the same; a dash for what is not there."""
    return "-" if value is None else json.dumps(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _known(word: str) -> str:
    return f"{KNOWLEDGE.get(word, '')} ({word})"


def _power(word: str) -> str:
    return POWERS.get(word, word)


def _slug(word: str) -> str:
    """A word of ours, or a name from outside, as the name of a class or a place."""
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "unnamed"


def _image(uri: str) -> str:
    """Only embedded PNG pictures are shown."""
    return uri if _PNG.match(uri) else ""
