"""Two classes, without any data: an update says one number, and only the clients of a round together say what it means.

What one class receives the other loses, so that a step's bias gradient is one number. If a client holds a share s of
the second class, to which the model gives a mean probability of a on samples of the first and of a + 1 - g on its own,

    b  =  (1 - s) a + s (a + 1 - g) - s  =  a - g s,        0 <= a <= g <= 1.

A model that tells nothing apart has g = 1, and none of its updates moves by more than g. No single update says what a
and g are. But all clients of a round were handed the same model: their b lie between a - g, where all samples are of
the second class, and a, where none is. A prior over how unlike clients are makes a posterior of that, and the model's
answer to the mean features of a client (update_alone.py) is one more observation, of a + (1 - g) s.

Clients may also be alike. Then what lies between their b is chance, and so are the answers, since where pushes cancel
no mean of features is left. Clients that come back say how much of either is chance: what their rounds say differently.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.readings import ReadCounts
from fedspill.leaks.labels.counts.returning_clients import chance
from fedspill.observe.probe import ModelAnswers
from fedspill.training import Schedule

ROUTE = "together"


def read_two_classes(
    bias: Tensor,
    schedules: Sequence[Schedule],
    rounds: Sequence[Hashable],
    answers: Sequence[ModelAnswers | None],
    clients: Sequence[Hashable],
    *,
    plain: bool,
) -> ReadCounts:
    """bias (origins, 2): step gradients of one pass, summed; one schedule, round, answer and client for each origin.

    clients: equal ones hold the same samples. plain: gradients have the size that a mean of errors has; else only how
    they compare is used.
    """
    steps = torch.tensor([len(schedule.sizes()) for schedule in schedules], dtype=torch.float64)
    moved = bias[:, 1].double() / steps
    samples = torch.tensor([schedule.samples for schedule in schedules])
    # A step counts once, however many samples it has: of a short one each sample weighs more.
    unlike = torch.tensor([sum(1 / size for size in schedule.sizes()) for schedule in schedules], dtype=torch.float64)
    ragged = unlike / steps.square()
    by_chance = chance(moved, rounds, clients)
    means, doubts = zip(*(_answer(one if plain else None) for one in answers), strict=True)
    mean, doubt = torch.tensor(means, dtype=torch.float64), torch.tensor(doubts, dtype=torch.float64)
    if bool(doubt.isfinite().all()):
        doubt = (doubt.square() + chance(mean, rounds, clients) ** 2).sqrt()
    found = torch.zeros(len(bias), COUNTS.share_points, dtype=torch.float64)
    for one in dict.fromkeys(rounds):
        rows = torch.tensor([row for row, other in enumerate(rounds) if other == one])
        answered = torch.stack([mean[rows], doubt[rows]])
        found[rows] = _posterior(moved[rows], samples[rows].double(), ragged[rows], answered, by_chance, plain=plain)
    return _read(found, samples)


def _shares() -> Tensor:
    points = COUNTS.share_points
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def _posterior(
    moved: Tensor, samples: Tensor, ragged: Tensor, answered: Tensor, by_chance: float, *, plain: bool
) -> Tensor:
    """(clients, shares) of one round: how likely each share is, whatever a, g and the kind of clients are.

    answered (2, clients): what the model answers to their mean features, and how far off that may be.
    """
    shares = _shares()
    if plain:
        unsure = torch.logspace(-2, 0, COUNTS.unsure_points, dtype=torch.float64)  # g
    else:  # a gradient of unknown size: what it spans among the clients is the least that g can be
        spanned = (moved.max() - moved.min()).clamp_min(1e-12)
        unsure = spanned * torch.linspace(1, 4, COUNTS.unsure_points, dtype=torch.float64)
    ratio = torch.linspace(0.02, 0.98, COUNTS.unsure_points, dtype=torch.float64)  # a / g
    expected = unsure[:, None, None] * (ratio[:, None] - shares)  # (g, a / g, shares)
    # If probabilities mean what they say, those of one class's samples vary by g (1 - g) / 4 at most.
    within = 0.25 * unsure * (1 - unsure).clamp_min(0) if plain else 0.25 * unsure.square()
    noise = (COUNTS.clients_differ * unsure).square() + by_chance**2 + within * ragged[:, None]
    noise = (noise + 0.25 * unsure.square() * (ragged - 1 / samples)[:, None]).sqrt()[..., None, None]  # (k, g, 1, 1)
    kinds = torch.tensor(COUNTS.kinds_of_clients, dtype=torch.float64)[:, None]
    prior = (kinds - 1) * (shares * (1 - shares)).log()
    prior = prior - prior.logsumexp(1, keepdim=True)  # (kinds, shares)
    tables = []
    for row, (b, (answer, doubt)) in enumerate(zip(moved, answered.T, strict=True)):
        table = -0.5 * ((b - expected) / noise[row]).square() - noise[row].log()
        table = table - 0.5 * ((answer - expected - shares) / doubt).square()
        tables.append(table + prior[:, None, None, :])  # (kinds, g, a / g, shares)
    together = torch.stack([table.logsumexp(-1) for table in tables]).sum(0)
    weight = together - together.flatten().logsumexp(0)
    marginals = [
        (table - table.logsumexp(-1, keepdim=True) + weight[..., None]).exp().sum((0, 1, 2)) for table in tables
    ]
    return torch.stack(marginals)


def _answer(answer: ModelAnswers | None) -> tuple[float, float]:
    """The second class's probability at a client's mean features, and how far off it may be; anything without answers.

    Where clients are alike what their samples push cancels, and no mean of features is left. Then the answer is extreme
    and its own slope flat, which says nothing of how sure it is: what moves a logit moves a probability by up to 1/4.
    """
    if answer is None:
        return 0.0, math.inf
    start, variance = float(answer.start[0, 1]), float(answer.variance[0, 1])
    end = start if answer.end is None else float(answer.end[0, 1].nan_to_num(start))
    logit = variance**0.5 / max(start * (1 - start), 1e-12)
    return 0.5 * (start + end), COUNTS.answer_differs + 0.25 * logit


def _read(found: Tensor, samples: Tensor) -> ReadCounts:
    """The median, which has fewest labels wrong, and what the posterior (origins, shares) says of it."""
    shares, below = _shares(), found.cumsum(1)
    step = 1 / len(shares)

    def quantile(level: float) -> Tensor:
        place = (below < level).sum(1).clamp_max(len(shares) - 1)
        inside = (level - (below - found).gather(1, place[:, None])[:, 0]) / found.gather(1, place[:, None])[:, 0]
        return (shares[place] + (inside.clamp(0, 1) - 0.5) * step).clamp(0, 1)

    middle = quantile(0.5)
    second = (middle * samples).round().long()
    # A point of the grid stands for the shares around it, the outermost ones for none and all too.
    low = (quantile((1 - COUNTS.stated) / 2) * samples - step * samples).floor().long().clamp_min(0).minimum(second)
    high = (quantile((1 + COUNTS.stated) / 2) * samples + step * samples).ceil().long().minimum(samples).maximum(second)
    off = ((shares - middle[:, None]).abs() * found).sum(1)
    width = 0.5 / samples[:, None]
    near = ((shares - (second / samples)[:, None]).abs() <= width.clamp_min(step / 2)).double()
    sure = ((near * found).sum(1) * (2 * width[:, 0] / (near.sum(1) * step).clamp_min(step)).clamp_max(1)).clamp(0, 1)
    return ReadCounts(
        torch.stack([samples - second, second], 1),
        sure[:, None].expand(-1, 2).contiguous(),
        1 - off,
        torch.stack([samples - high, low], 1),
        torch.stack([samples - low, high], 1),
        (ROUTE,) * len(found),
    )
