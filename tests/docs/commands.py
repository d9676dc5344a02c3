"""The commands and files that a document shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """Fenced blocks of a language; those marked `skip` (an installation, a cluster) are not among them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """Every `fedspill` command in its shell blocks, as arguments without the name and without comments."""
    joined = "\n".join(blocks(document, "sh")).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.startswith("fedspill ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def shown(document: str) -> list[list[str]]:
    """Every `fedspill` command that stands on a line of its own, whether tests run it there or not."""
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?:    )?(fedspill .+)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def files(document: str) -> dict[str, str]:
    """The files that it shows whole: fenced blocks with `file=NAME`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
