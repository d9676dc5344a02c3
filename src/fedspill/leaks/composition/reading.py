"""What a composition attack reads: the class shares of each client."""

from __future__ import annotations

from fedspill.leaks.composition.guess import Proportions
from fedspill.reading import ROWS, Entry, Reading, ReadingTable, by_sender, percent


def read_shares(guess: Proportions, private: bool) -> Reading:
    """The mean over a client's rounds, in whole per cent; of small shares only that they are small."""
    answered = guess.answered.tolist()
    senders = {who: [row for row in rows if answered[row]] for who, rows in by_sender(guess).items()}
    senders = {who: rows for who, rows in senders.items() if rows}
    table: list[list[Entry]] = []
    for who, rows in list(senders.items())[:ROWS]:
        shares = guess.shares[rows].double().mean(0).tolist()
        agreement = round(100 * float(guess.agreement[rows].double().mean()))
        table.append([who, len(rows), agreement, *(round(100 * s) if private else percent(s) for s in shares)])
    classes = [f"class {label} %" for label in range(guess.shares.shape[1])]
    columns = ["client", "messages", "agreement %", *classes]
    whom = "1 client" if len(senders) == 1 else f"{len(senders)} clients"
    return Reading(
        summary=f"the class shares of {whom}",
        messages=sum(map(len, senders.values())),
        tables=[ReadingTable(title="Shares of the classes, by client", columns=columns, rows=table)] if table else [],
    )
