"""What Class Sniffing reads: in how many rounds each class took part."""

from __future__ import annotations

from fedspill.leaks.presence.guess import Presence
from fedspill.reading import Entry, Reading, ReadingTable, messages_of


def read_presence(guess: Presence, private: bool) -> Reading:
    """Rounds, not clients: a round's sum speaks of nobody by name."""
    rows: list[list[Entry]] = [[str(label), int(many)] for label, many in enumerate(guess.present.sum(0).tolist())]
    return Reading(
        summary=f"which classes took part in {messages_of(len(guess.of), 'round')}",
        messages=len(guess.of),
        tables=[ReadingTable(title="Rounds with the class", columns=["class", "rounds"], rows=rows)],
    )
