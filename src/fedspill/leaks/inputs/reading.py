"""What a reconstruction reads: how many samples, and how many of them it can vouch for. Never the samples."""

from __future__ import annotations

from fedspill.leaks.inputs.guess import Inputs
from fedspill.reading import ROWS, Entry, Reading, ReadingTable, by_sender, messages_of


def read_samples(guess: Inputs, private: bool) -> Reading:
    """Counts by client. A certificate is the attack's own proof: the sample explains what was observed exactly."""
    answered = guess.answered.tolist()
    rows: list[list[Entry]] = []
    for who, places in by_sender(guess).items():
        own = [place for place in places if answered[place]]
        if own:
            found = sum(len(guess.samples[place]) for place in own)
            rows.append([who, len(own), found, sum(int(guess.certified[place].sum()) for place in own)])
    messages = [row for row, yes in enumerate(answered) if yes]
    samples = sum(len(guess.samples[row]) for row in messages)
    proven = sum(int(guess.certified[row].sum()) for row in messages)
    return Reading(
        summary=f"{samples} inputs out of {messages_of(len(messages), 'message')}, {proven} of them with a certificate",
        # Only what is proven is expected to be right: an image that looks like one is no evidence.
        expects=proven / samples if samples and proven else None,
        messages=len(messages),
        tables=[_table(rows[:ROWS])] if rows else [],
        withheld="" if private or not samples else "the inputs themselves, which no output holds without the truth",
    )


def _table(rows: list[list[Entry]]) -> ReadingTable:
    columns = ["client", "messages", "inputs", "with a certificate"]
    return ReadingTable(title="Inputs read, by client", columns=columns, rows=rows)
