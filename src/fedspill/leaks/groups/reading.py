"""What Whole Determination reads: which classes the federation has most of."""

from __future__ import annotations

from fedspill.leaks.groups.guess import Groups
from fedspill.reading import Entry, Reading, ReadingTable


def read_groups(guess: Groups, private: bool) -> Reading:
    """The classes of the last round that was answered, in their groups, largest first; of no client by itself."""
    answered = [row for row, yes in enumerate(guess.answered.tolist()) if yes]
    if not answered:
        return Reading(summary="no order of the classes", messages=0)
    groups = guess.group[answered[-1]].tolist()
    rows: list[list[Entry]] = [[str(label), number] for number, label in sorted((g, c) for c, g in enumerate(groups))]
    return Reading(
        summary=f"which of {len(groups)} classes the federation has most of, in {len(set(groups))} groups",
        messages=len(answered),
        tables=[ReadingTable(title="Classes, largest group first", columns=["class", "group"], rows=rows)],
    )
