"""Reading: what an adversary reads out of a federation, in words and tables, whether or not anybody knows the truth.

A reading is of groups of records, never of one: counts and shares that fewer than FEW samples stand behind are not
told, and what speaks of clients with less than ENOUGH samples is withheld unless data may be shown.
"""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from fedspill.guess import Guess

ENOUGH = 100  # samples behind a row, so that it says nothing about a single one
FEW = 5  # samples below which a count is not told
ROWS = 50  # of a table; a federation of thousands is summed up above it

Entry: TypeAlias = str | int | float | None


class ReadingTable(BaseModel):
    """Numbers that were read, row by row; an entry that is null is too small to be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    columns: list[str]
    rows: list[list[Entry]]


class Reading(BaseModel):
    """What one attack reads: a few words, how sure the attack itself is, and tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str  # "the labels of 40 updates by 8 clients"
    expects: float | None = None  # the share of it that the attack itself expects to be right
    messages: int = 0  # how many messages, or sums, it was read out of
    tables: list[ReadingTable] = Field(default_factory=list)
    withheld: str = ""  # what --show-data would add


def messages_of(number: int, what: str) -> str:
    """ "1 update", "40 updates"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def by_sender(guess: Guess) -> dict[str, list[int]]:
    """Which rows of a guess are about whom, in the order of the senders' names."""
    found: dict[str, list[int]] = {}
    for row, origin in enumerate(guess.of):
        found.setdefault(origin.sender, []).append(row)
    return {name: found[name] for name in sorted(found, key=lambda name: (len(name), name))}


def told(count: float) -> int | None:
    """A count, unless so few samples stand behind it that it would speak of single ones."""
    return None if count < FEW else round(count)


def percent(share: float) -> int | None:
    """A share in whole per cent, unless it is so small that it may be of single samples."""
    return None if share < FEW / ENOUGH else round(100 * share)


def plain_reading(guess: Guess) -> Reading:
    """For a leak that says nothing of its own: how many messages were answered."""
    senders = len({origin.sender for origin in guess.of})
    whom = "1 sender" if senders == 1 else f"{senders} senders"
    return Reading(summary=f"{messages_of(len(guess.of), 'answer')} about {whom}", messages=len(guess.of))
