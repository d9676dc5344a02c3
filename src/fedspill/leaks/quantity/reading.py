"""What Quantity Inference reads: how many clients of a round own each class."""

from __future__ import annotations

import torch

from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.reading import Entry, Reading, ReadingTable, messages_of

TITLE = "Clients that own the class, mean over rounds"


def read_quantities(guess: ClassQuantities, private: bool) -> Reading:
    """The mean over the rounds that were answered."""
    answered = guess.clients[torch.isfinite(guess.clients).all(1)].double()
    rows: list[list[Entry]] = []
    if len(answered):
        rows = [[str(label), round(float(many), 1)] for label, many in enumerate(answered.mean(0).tolist())]
    return Reading(
        summary=f"how many clients own each class, in {messages_of(len(answered), 'round')}",
        messages=len(answered),
        tables=[ReadingTable(title=TITLE, columns=["class", "clients"], rows=rows)] if rows else [],
    )
