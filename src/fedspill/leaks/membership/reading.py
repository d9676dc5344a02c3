"""What a membership attack reads: how many records it ranks, of how many clients. Never which."""

from __future__ import annotations

from fedspill.leaks.membership.guess import Membership
from fedspill.reading import Reading


def read_members(guess: Membership, private: bool) -> Reading:
    """Scores rank records; without the truth of some of them nobody can say from which rank on they are members."""
    clients = len({origin.sender for origin in guess.of})
    # A malicious server has targets of each round; a passive adversary asks about the same records in all.
    rounds = [origin.round if guess.labels is None else 0 for origin in guess.of]
    records = len(set(zip(rounds, guess.places.tolist(), strict=True)))
    whom = "1 client or sum" if clients == 1 else f"{clients} clients"
    return Reading(
        summary=f"how likely each of {records} records was trained on, asked of {whom}",
        messages=len(guess.of),
        withheld="" if private else "which record has which score",
    )
