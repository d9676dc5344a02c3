"""What an attack on text reads: how many words and texts, and how many of these it can vouch for. Never the words."""

from __future__ import annotations

from fedspill.leaks.words.guess import ClientText
from fedspill.reading import ROWS, Entry, Reading, ReadingTable, by_sender, messages_of


def read_text(guess: ClientText, private: bool) -> Reading:
    """Counts by client. Only certified texts are expected to be right."""
    counts = [
        (len(tokens), len(guess.texts(place)), 0 if guess.certified is None else int(guess.certified[place].sum()))
        for place, tokens in enumerate(guess.tokens)
    ]
    rows: list[list[Entry]] = [
        [who, len(places), *map(sum, zip(*(counts[place] for place in places), strict=True))]
        for who, places in by_sender(guess).items()
    ]
    words, texts, proven = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
    read = f"{words} words and {texts} texts, {proven} of these with a certificate" if texts else f"{words} words"
    return Reading(
        summary=f"{read}, out of {messages_of(len(counts), 'message')}",
        expects=proven / texts if texts and proven else None,
        messages=len(counts),
        tables=[_table(rows[:ROWS])] if rows else [],
        withheld="" if private or not words else "the words themselves, which no output holds without the truth",
    )


def _table(rows: list[list[Entry]]) -> ReadingTable:
    columns = ["client", "messages", "words", "texts", "with a certificate"]
    return ReadingTable(title="Words read, by client", columns=columns, rows=rows)
