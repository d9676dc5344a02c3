"""Embedding rows: the rows of a token embedding that moved are the tokens that a client used.

Melis et al. 2019 saw it first. Nothing has to be computed but the size of each row of one tensor. In a sum of clients
the rows are those of all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.leak import WORDS
from fedspill.leaks.words.moved_rows import UntouchedRows, moved_rows
from fedspill.leaks.words.token_embedding import find_embedding
from fedspill.leaks.words.token_rows import TokenRows
from fedspill.messages import Message
from fedspill.threat import needs
from fedspill.trace import Origin, View


@final
@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """Names the tokens whose rows moved. It needs to know nothing, so that anyone on the wire can do it.

    Weight decay moves every row by an amount that is known; noise moves every row by an amount that the rows without
    tokens show. A head that shares the embedding's weights moves all rows too, but those without a token alike. Where
    the model hashes words, and its code is known, a word is named when all its rows moved. Does not apply where the
    embedding is frozen.
    """

    name: ClassVar[str] = "embedding-rows"
    title: ClassVar[str] = "Words whose embedding moved"
    paper: ClassVar[str] = "Melis et al., Exploiting unintended feature leakage, S&P 2019"
    needs = needs(sees=["update|gradient|aggregate"])
    leak = WORDS

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        messages = readable(view)
        embedding = find_embedding(view, messages)
        untouched, own_rows = UntouchedRows.known_to(view, embedding), TokenRows.known_to(view, embedding)
        of, found, notes = [], [], []
        for message in messages:
            who = f"{message.sender} in round {message.round} was left out: its {message.kind}"
            change = embedding.rows_in(message)
            if change is None:
                notes.append(f"{who} holds no rows of {embedding.name}")
                continue
            if not bool(torch.isfinite(change.square().sum())):
                notes.append(f"{who} has NaN, infinite or absurd values")
                continue
            change = change - untouched.change(message)
            moved = moved_rows(change, untouched.rounding(message), untouched.start.get(message.round))
            if not len(moved):
                how = "moves all rows alike of" if bool(change.any()) else "does not move"
                notes.append(f"{who} {how} {embedding.name}")
                continue
            of.append(Origin(message.round, message.sender))
            moved = moved[moved != embedding.padding] if embedding.padding is not None else moved
            found.append(moved if own_rows is None else own_rows.named(moved))
        if of and own_rows is not None:
            shared = len(own_rows.rows) - len(set(own_rows.rows.values()))
            notes.append(f"rows are not words: {shared} of {len(own_rows.rows)} words share theirs with another")
        if not of:
            raise NotApplicable(f"No rows of an embedding stand out. {'; '.join(notes[:2])}.")
        return ClientText(of, found, notes=notes)


def readable(view: View) -> list[Message]:
    """Single updates or gradients where the adversary sees them, else the sums."""
    messages: list[Message] = []
    for kind in ("update", "gradient"):
        messages += view.get(kind) if view.sees(kind) else []
    if not messages and view.sees("aggregate"):
        messages = view.get("aggregate")
    if not messages:
        raise NotApplicable("No update, gradient or aggregate was recorded for this adversary.")
    return messages
