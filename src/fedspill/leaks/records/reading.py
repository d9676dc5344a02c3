"""What an attack on a table reads: how many records, and how many of them it can vouch for. Never the records."""

from __future__ import annotations

from fedspill.leaks.records.guess import Records
from fedspill.reading import ROWS, Entry, Reading, ReadingTable, by_sender, messages_of


def read_records(guess: Records, private: bool) -> Reading:
    """Counts by client."""
    answered = guess.answered.tolist()
    rows: list[list[Entry]] = []
    for who, places in by_sender(guess).items():
        own = [place for place in places if answered[place]]
        if own:
            sure = sum(int(guess.certified[place].sum()) for place in own)
            rows.append([who, len(own), sum(len(guess.rows[place]) for place in own), sure])
    found, sure = (sum(int(row[column] or 0) for row in rows) for column in (2, 3))
    messages = sum(answered)
    columns = ["client", "messages", "records", "with a certificate"]
    return Reading(
        summary=f"{found} records out of {messages_of(messages, 'message')}, {sure} of them with a certificate",
        expects=sure / found if sure else None,
        messages=messages,
        tables=[ReadingTable(title="Records read, by client", columns=columns, rows=rows[:ROWS])] if rows else [],
        withheld="" if private or not found else "the records themselves, which no output holds without the truth",
    )
