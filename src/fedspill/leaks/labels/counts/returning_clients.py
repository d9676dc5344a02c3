"""What clients say that come back: they hold what they held before.

A reading that tells clients apart, and says the same of a client each time, follows their labels. One that changes from
round to round follows the model or chance. The spread of either kind needs no truth. And what rounds say differently of
the same samples is error, which averages out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.readings import ReadCounts
from fedspill.observe.drawn_clients import counts_of_shares

FEWEST_CLIENTS = 3  # that came back: a spread among fewer says nothing (convention)
CONTRADICTS = 2.0  # times as far apart as readings state to be off: not of the same samples (convention)
LEAST_ERROR = 0.02  # of the labels, that a reading is taken to have wrong: none alone outweighs all others (convention)


def read_together(each: ReadCounts, samples: Tensor, clients: Sequence[Hashable]) -> ReadCounts:
    """One reading of all rounds of a client, `clients` (origins,) say whose an update is; samples (origins,).

    Rounds count for more the fewer labels they state to have wrong. A client whose rounds contradict each other by more
    than they state has not held the same samples, and is read round by round.
    """
    counts, sure, expected, low, high = (
        getattr(each, name).clone() for name in ("counts", "sure", "expected", "low", "high")
    )
    for own in _rows_of_returning(clients):
        wrong = (1 - each.expected[own]).clamp_min(LEAST_ERROR)
        weights = (1 / wrong) / (1 / wrong).sum()
        shares = each.counts[own].double() / samples[own, None]
        mean = weights @ shares
        apart = 0.5 * (shares - mean).abs().sum(1)
        if float(apart.mean()) > CONTRADICTS * float(wrong.mean()):
            continue
        counts[own] = counts_of_shares(mean[None], int(samples[own[0]]))
        # What rounds disagree on averages out; what they have in common stays.
        left = (wrong.square() - (1 - 1 / len(own)) * apart.square()).maximum(wrong.square() / len(own))
        expected[own] = 1 - (weights @ left).sqrt()
        sure[own] = weights @ each.sure[own]
        below, above = (weights @ side[own].double() for side in (each.low - each.counts, each.high - each.counts))
        low[own] = (counts[own] + below.floor().long()).clamp_min(0)
        high[own] = (counts[own] + above.ceil().long()).minimum(samples[own, None])
    return replace(each, counts=counts, sure=sure, expected=expected, low=low, high=high)


def trust(shares: Tensor, senders: Sequence[Hashable]) -> float | None:
    """Variance of shares (origins, classes) between clients over that within them; None where too few come back."""
    returning = [shares[own] for own in _rows_of_returning(senders)]
    if len(returning) < FEWEST_CLIENTS:
        return None
    within = torch.stack([own.var(0).sum() for own in returning]).mean()
    between = torch.stack([own.mean(0) for own in returning]).var(0).sum()
    return float(between / within.clamp_min(1e-12))


def chance(values: Tensor, rounds: Sequence[Hashable], clients: Sequence[Hashable]) -> float:
    """The standard deviation of a client's values (origins,) over its rounds, but for what a round moves for all.

    As in an analysis of variance of two ways. 0 where too few come back.
    """
    returning = _rows_of_returning(clients)
    if len(returning) < FEWEST_CLIENTS:
        return 0.0
    came = torch.tensor(sorted(row for own in returning for row in own))
    left = values.clone()
    for number in dict.fromkeys(rounds):
        here = torch.tensor([row for row in came.tolist() if rounds[row] == number], dtype=torch.int64)
        left[here] -= left[here].mean()
    squares = sum(float((left[own] - left[own].mean()).square().sum()) for own in returning)
    return float((squares / ((len(came) - len(returning)) * (1 - 1 / len(returning)))) ** 0.5)


def _rows_of_returning(clients: Sequence[Hashable]) -> list[list[int]]:
    """For each client that comes back the places of its updates."""
    rows: dict[Hashable, list[int]] = {}
    for row, client in enumerate(clients):
        rows.setdefault(client, []).append(row)
    return [own for own in rows.values() if len(own) > 1]


def weight_of_first(first: Tensor, second: Tensor, senders: Sequence[str]) -> float:
    """How much of the first of two readings (origins, classes) of shares to take; half where nothing tells."""
    ratios = [trust(shares, senders) for shares in (first, second)]
    if ratios[0] is None or ratios[1] is None:
        return 0.5
    return ratios[0] / max(ratios[0] + ratios[1], 1e-12)
