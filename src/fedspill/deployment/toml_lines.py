"""Where in a TOML text a key stands, so that a mistake in a plan can be pointed at."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_TRIPLE = ('"""', "'''")


def line_of(text: str, place: Sequence[str | int], value: object = None) -> int | None:
    """The line (from 1) of the key at `place`, or of its nearest parent; `value` narrows a list down to its item."""
    known = _keys(text)
    path = tuple(place)
    for length in range(len(path), 0, -1):
        line = known.get(path[:length])
        if line is not None:
            inside = length < len(path) or isinstance(value, str)
            return _narrowed(text, line, path[length:], value) if inside else line
    return None


def _keys(text: str) -> dict[Path, int]:
    """The line of every table and key; keys inside one-line tables and lists count as their owner's."""
    found: dict[Path, int] = {}
    tables: Counter[Path] = Counter()
    table: Path = ()
    quoted = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quoted:
            quoted = "" if quoted in line else quoted
            continue
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _split(header[2])
            if header[1] == "[[":
                tables[table] += 1
                found.setdefault(table, number)
                table = (*table, tables[table] - 1)
            found.setdefault(table, number)
        elif key:
            for length in range(1, len(_split(key[1])) + 1):
                found.setdefault((*table, *_split(key[1])[:length]), number)
            quoted = next((mark for mark in _TRIPLE if line.count(mark) == 1), "")
    return found


def _split(dotted: str) -> Path:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _narrowed(text: str, first: int, rest: Path, value: object) -> int:
    """Within the entry that starts at line `first`: the line that holds the value, or the last named key."""
    lines = text.splitlines()
    wanted = [f'"{value}"', f"'{value}'"] if isinstance(value, str) else []
    wanted += [str(part) for part in reversed(rest) if isinstance(part, str)]
    for word in wanted:
        for number in range(first, len(lines) + 1):
            line = lines[number - 1]
            if number > first and (_HEADER.match(line) or _KEY.match(line)):
                break
            if word in line:
                return number
    return first
