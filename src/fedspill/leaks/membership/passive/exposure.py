"""Who is exposed most: the share of each client's members that is found, and, where it may be shown, which records."""

from __future__ import annotations

from torch import Tensor

from fedspill.evidence import Clients, Evidence, ExposedRecords
from fedspill.leaks.membership.passive.truth_of_asked import CountedAnswers

_RATE = 0.01  # of false alarms, at which members of a client are counted as found
_FEWEST = 5  # members of a client; a share of fewer would be about single records
_MOST = 20  # records that are named


def exposed_clients(found: CountedAnswers) -> list[Evidence]:
    """Members found at 1 % false alarms, one figure a client; none where outsiders are too few for that rate."""
    outside = found.scores[~found.member]
    if len(outside) * _RATE < 1 or len(found.senders) < 2:
        return []
    names, shares = [], []
    for index, sender in enumerate(found.senders):
        own = found.scores[found.member & (found.sender == index)]
        if len(own) >= _FEWEST:
            names.append(sender)
            shares.append(share_above(own, outside, _RATE))
    if len(names) < 2:
        return []
    order = sorted(range(len(names)), key=lambda place: (len(names[place]), names[place]))
    values = [shares[place] for place in order]
    title = "Members found at 1 % false alarms, by client"
    return [Clients(title, False, [names[place] for place in order], values, [_RATE] * len(names))]


def exposed_records(found: CountedAnswers) -> list[Evidence]:
    """The members with the highest scores, and how many outsiders score as high."""
    inside = found.member.nonzero().flatten()
    first = inside[found.scores[inside].argsort(descending=True, stable=True)[:_MOST]]
    if len(first) == 0:
        return []
    outside = found.scores[~found.member]
    return [
        ExposedRecords(
            "Most exposed records",
            True,
            [f"client:{int(place)}" for place in found.places[first, 0]],
            [int(place) for place in found.places[first, 1]],
            [float(score) for score in found.scores[first]],
            [int((outside >= score).sum()) for score in found.scores[first]],
        )
    ]


def share_above(inside: Tensor, outside: Tensor, rate: float) -> float:
    """Share of `inside` strictly above the threshold that at most a share `rate` of `outside` exceeds."""
    allowed = int(rate * len(outside) + 1e-9)
    threshold = outside.sort(descending=True).values[min(allowed, len(outside) - 1)]
    return float((inside > threshold).double().mean())
