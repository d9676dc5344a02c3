"""Text from outside made harmless, before anything is printed or written of it."""

from __future__ import annotations

import unicodedata


def plain(text: str) -> str:
    """Text without control characters, so that names from outside cannot move the cursor or colour the screen."""
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "�" for c in text)


def one_line(text: str) -> str:
    """The same on one line: a name with a line break in it must not print a line of its own."""
    kept = "".join(" " if c in "\n\t\r" or unicodedata.category(c) in ("Zl", "Zp") else c for c in text)
    return plain(kept)
