"""The commands and files that a document shows, and the command line as its reader has it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """Fenced blocks of a language; those marked `skip` (an installation, a cluster) are not among them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lines(document: str, language: str = "sh") -> list[list[str]]:
    """Every command in its shell blocks, as words, without comments."""
    joined = "\n".join(blocks(document, language)).replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def commands(document: str) -> list[list[str]]:
    """Of these the ones of `fedspill`, without its name."""
    return [words[1:] for words in lines(document) if words[0] == "fedspill"]


def shown(document: str) -> list[list[str]]:
    """Every `fedspill` command that stands on a line of its own, whether tests run it there or not."""
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^(?:    )?(fedspill .+)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in found]


def files(document: str) -> dict[str, str]:
    """The files that it shows whole: fenced blocks with `file=NAME`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def tops(document: str) -> dict[str, str]:
    """Lines that a reader puts at the top of a file: fenced blocks with `top=NAME`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ top=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def environment(**more: str) -> dict[str, str]:
    """That of a reader: the commands of this environment are found, each has one thread, and no data are at hand."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if name != "FEDSPILL_DATA"}
    own = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}
    return kept | own | {"RAY_USAGE_STATS_ENABLED": "0"} | more


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command as it stands on a page; `fedspill` and `python` are those of this environment."""
    named = {"fedspill": [sys.executable, "-m", "fedspill"], "python": [sys.executable]}
    command = [*named.get(words[0], [words[0]]), *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, check=False)


def run_all(folder: Path, *listed: list[str]) -> None:
    """Commands one after the other; each must end as a reader is told."""
    for words in listed:
        done = run(folder, *words)
        said = f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in codes(words), said
        assert "Traceback" not in done.stderr, said


def codes(words: list[str]) -> set[int]:
    """The exit codes that are no failure: findings that were asked for and not accepted, a recording that was read."""
    found = "--fail-on" in words and "--accept" not in words
    read = "--trace" in words and "audit" in words
    return {0} | ({1} if found else set()) | ({5} if read else set())
