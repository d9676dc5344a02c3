"""Which of the answers about records count, and what is true of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import NoTruth
from fedspill.leaks.membership.guess import Membership
from fedspill.trace import Truth


@dataclass(frozen=True, eq=False)
class CountedAnswers:
    """Members as asked of their own client (or the sum), and outsiders as asked of one client each.

    Every record counts once, so that answers are independent. A member as asked of a client that does not hold it is
    neither: it counts for no one.
    """

    scores: Tensor  # (answers,)
    labels: Tensor  # (answers,)
    member: Tensor  # (answers,) bool
    label_only: Tensor  # (answers,) how common the label is with the client: what no message is needed for
    sender: Tensor  # (answers,) index of the client asked of
    places: Tensor  # (answers, 2) the client that holds the record and its place there, or -1
    senders: tuple[str, ...]  # whom that index means


def counted_answers(guess: Membership, truth: Truth, *, of_every_client: bool = False) -> CountedAnswers:
    """With `of_every_client` an outsider counts as often as it was asked: more comparisons, not independent ones."""
    assert guess.labels is not None
    where = [value for (_, name), value in truth.facts.items() if name == "asked_places"]
    if not where or int(guess.places.max()) >= len(where[0]):
        raise NoTruth("the recording does not say which records were asked about")
    senders = sorted({origin.sender for origin in guess.of})
    used = {sender: _used(truth, sender) for sender in senders}
    counts = {sender: _label_counts(truth, sender) for sender in senders}
    places = where[0].tolist()
    index = {sender: number for number, sender in enumerate(senders)}
    kept, member, sender_of, common = [], [], [], []
    for row, (origin, place) in enumerate(zip(guess.of, guess.places.tolist(), strict=True)):
        own, mine = tuple(places[place]), index[origin.sender]
        inside = own in used[origin.sender]
        if inside or (own[0] < 0 and (of_every_client or place % len(senders) == mine)):
            kept.append(row)
            member.append(inside)
            sender_of.append(mine)
            label = int(guess.labels[row])
            held = counts[origin.sender]
            common.append(float(held[label]) if label < len(held) else 0.0)
    chosen = torch.tensor(kept, dtype=torch.int64)
    return CountedAnswers(
        guess.scores[chosen],
        guess.labels[chosen],
        torch.tensor(member, dtype=torch.bool),
        torch.tensor(common, dtype=torch.double),
        torch.tensor(sender_of, dtype=torch.int64),
        where[0][guess.places[chosen]],
        tuple(senders),
    )


def _used(truth: Truth, sender: str) -> set[tuple[int, int]]:
    """(client, sample) of everything that the sender's messages were trained on."""
    found = [v for (origin, name), v in truth.facts.items() if name == "used_samples" and origin.sender == sender]
    if not found:
        raise NoTruth(f"the recording does not say what {sender} trained on")
    return {(int(client), int(sample)) for client, sample in torch.cat(found).tolist()}


def _label_counts(truth: Truth, sender: str) -> Tensor:
    found = [v for (origin, name), v in truth.facts.items() if name == "label_counts" and origin.sender == sender]
    return torch.stack(found).double().mean(0) / max(float(torch.stack(found).double().mean(0).sum()), 1.0)
