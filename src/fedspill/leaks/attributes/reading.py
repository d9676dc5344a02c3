"""What an attribute attack reads: of how many records it has an opinion. Never which."""

from __future__ import annotations

from fedspill.leaks.attributes.guess import Attributes
from fedspill.reading import Reading


def read_attributes(guess: Attributes, private: bool) -> Reading:
    return Reading(
        summary=f"how likely the attribute is of each of {len(guess.of)} records",
        messages=len(guess.of),
        withheld="" if private else "which record has which score",
    )
