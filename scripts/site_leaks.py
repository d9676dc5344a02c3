"""What a leak's page says that the code knows: who can, by which attacks, how it is scored."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fedspill.leak import Leak
from fedspill.registry import Entry, entries, find, load, load_leak
from fedspill.threat import ADVERSARIES, KNOWLEDGE, POWERS, made_for, stands_in

PARTS = ("question", "who", "attacks", "scoring")


@cache
def attacks_on(leak: str) -> tuple[tuple[Entry, Any], ...]:
    """(entry, class) of every attack on it, by name."""
    loaded = [(entry, load("attacks", entry.name)) for entry in entries("attacks") if not entry.is_plugin]
    return tuple((entry, kind) for entry, kind in loaded if kind.leak.name == leak)


def unwritten(folder: Path) -> list[str]:
    """Leaks of which nobody has written a page yet, in the folder of such pages."""
    return [entry.name for entry in entries("leaks") if not (folder / f"{entry.name}.md").is_file()]


def plain_page(leak: str) -> str:
    """What the code alone says of a leak."""
    heads = {"question": "", "who": "## Who can do it\n\n", "attacks": "## The attacks\n\n"}
    heads["scoring"] = "## How it is scored\n\n"
    parts = [f"{heads[name]}<!-- generated: {name} -->" for name in PARTS]
    return "\n\n".join([f"# {load_leak(leak).title}", *parts]) + "\n"


def others(folder: Path) -> str:
    """A sentence that names the leaks without a page of their own making."""
    named = [f"[{name}]({name}.md)" for name in unwritten(folder)]
    return f"Also: {', '.join(named)}." if named else ""


def part(name: str, leak: str) -> str:
    """One generated part of the page, as Markdown."""
    known = load_leak(leak)
    assert isinstance(known, Leak)
    return {"question": _question, "who": _who, "attacks": _attacks, "scoring": _scoring}[name](known)


def _question(leak: Leak[Any]) -> str:
    federations = " or ".join(leak.federations)
    return f'!!! question "{leak.title}"\n    {leak.question}\n\n    Federations that can have it: {federations}.'


def _who(leak: Leak[Any]) -> str:
    rows = ["| adversary | who that is | attacks it can run |", "|---|---|---|"]
    for threat in ADVERSARIES.values():
        fits = [
            f"`{entry.name}`"
            for entry, kind in attacks_on(leak.name)
            if made_for(kind.needs) == stands_in(threat) and not threat.missing(kind.needs)
        ]
        if fits:
            rows.append(f"| `{threat.name}` | {threat.title} | {', '.join(fits)} |")
    return "\n".join(rows)


def _attacks(leak: Leak[Any]) -> str:
    rows = ["| attack | what it does | from | needs |", "|---|---|---|---|"]
    for entry, kind in attacks_on(leak.name):
        rows.append(f"| `{entry.name}` | {_first(entry.about)} | {_source(entry.paper)} | {_needs(kind)} |")
    return "\n".join(rows)


def _first(about: str) -> str:
    """The first paragraph of a docstring, on one line of a table."""
    return " ".join(about.split("\n\n")[0].split()).replace("|", "\\|")


def _source(paper: str) -> str:
    """A paper of this repository by its page, others as they are written."""
    if paper.isdigit():
        return f"[paper {paper}](../papers/{paper}.md)"
    return "ours" + paper.removeprefix("fedspill") if paper.startswith("fedspill") else paper


def _needs(kind: Any) -> str:
    sees = [f"{' or '.join(sorted(group))} messages" for group in kind.needs.sees]
    knows = [KNOWLEDGE[word] for word in sorted(kind.needs.knows)]
    does = [f"to {POWERS[word]}" for word in sorted(kind.needs.does)]
    return "; ".join([*sees, *knows, *does])


def _scoring(leak: Leak[Any]) -> str:
    lines = []
    for number, metric in enumerate(leak.metrics):
        role = "the headline, by which findings are ranked" if not number else "a detail"
        about = _first(find("metrics", metric.name).about)
        lines.append(f"- `{metric.name}` ({role}): {metric.title}. {about}")
    ids = ", ".join(f"{name} {value}" for name, value in leak.taxonomy.items())
    return "\n".join(lines) + f"\n\nNearest entries of public lists: {ids}."
