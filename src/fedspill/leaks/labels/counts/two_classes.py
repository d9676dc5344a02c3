"""Two classes, without any data: an update says one number, and only the clients of a round together say what it means.

What one class receives the other loses, so that a step's bias gradient is one number. If a client holds a share s of
the second class, to which the model gives a mean probability of a on samples of the first and of a + 1 - g on its own,

    b  =  (1 - s) a + s (a + 1 - g) - s  =  a - g s,        0 <= a <= g <= 1.

A model that tells nothing apart has g = 1, and none of its updates moves by more than g. No single update says what a
and g are. But all clients of a round were handed the same model: their b lie between a - g, where all samples are of
the second class, and a, where none is. A prior over how unlike clients are makes a posterior of that, and the model's
answer to the mean features of a client (update_alone.py) is one more observation, of a + (1 - g) s.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.readings import ReadCounts
from fedspill.observe.probe import ModelAnswers
from fedspill.training import Schedule

ROUTE = "together"


def read_two_classes(
    bias: Tensor,
    schedules: Sequence[Schedule],
    rounds: Sequence[Hashable],
    answers: Sequence[ModelAnswers | None],
    *,
    plain: bool,
) -> ReadCounts:
    """bias (origins, 2): step gradients of one pass, summed; one schedule, round and answer for each origin.

    plain: gradients have the size that a mean of errors has; else only how they compare is used.
    """
    steps = torch.tensor([len(schedule.sizes()) for schedule in schedules], dtype=torch.float64)
    moved = bias[:, 1].double() / steps
    samples = torch.tensor([schedule.samples for schedule in schedules])
    # A step counts once, however many samples it has: of a short one each sample weighs more.
    unlike = torch.tensor([sum(1 / size for size in schedule.sizes()) for schedule in schedules], dtype=torch.float64)
    ragged = unlike / steps.square()
    found = torch.zeros(len(bias), COUNTS.share_points, dtype=torch.float64)
    for one in dict.fromkeys(rounds):
        rows = torch.tensor([row for row, other in enumerate(rounds) if other == one])
        said = [answers[row] for row in rows.tolist()] if plain else []
        found[rows] = _posterior(moved[rows], samples[rows].double(), ragged[rows], said, plain=plain)
    return _read(found, samples)


def _shares() -> Tensor:
    points = COUNTS.share_points
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def _posterior(
    moved: Tensor, samples: Tensor, ragged: Tensor, answers: Sequence[ModelAnswers | None], *, plain: bool
) -> Tensor:
    """(clients, shares) of one round: how likely each share is, whatever a, g and the kind of clients are."""
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
    noise = (COUNTS.clients_differ * unsure).square() + within * ragged[:, None]
    noise = (noise + 0.25 * unsure.square() * (ragged - 1 / samples)[:, None]).sqrt()[..., None, None]  # (k, g, 1, 1)
    kinds = torch.tensor(COUNTS.kinds_of_clients, dtype=torch.float64)[:, None]
    prior = (kinds - 1) * (shares * (1 - shares)).log()
    prior = prior - prior.logsumexp(1, keepdim=True)  # (kinds, shares)
    tables = []
    for row, b in enumerate(moved):
        table = -0.5 * ((b - expected) / noise[row]).square() - noise[row].log()
        answer = answers[row] if answers else None
        if answer is not None:
            table = table + _log_likely_answer(answer, expected + shares)
        tables.append(table + prior[:, None, None, :])  # (kinds, g, a / g, shares)
    together = torch.stack([table.logsumexp(-1) for table in tables]).sum(0)
    weight = together - together.flatten().logsumexp(0)
    marginals = [
        (table - table.logsumexp(-1, keepdim=True) + weight[..., None]).exp().sum((0, 1, 2)) for table in tables
    ]
    return torch.stack(marginals)


def _log_likely_answer(answer: ModelAnswers, expected: Tensor) -> Tensor:
    """Of the answer to a client's mean features, where `expected` is; a probability for each hypothesis.

    Where clients are alike what their samples push cancels, and no mean of features is left. Then the answer is extreme
    and its own slope flat, which says nothing of how sure it is: what moves a logit moves a probability by up to 1/4.
    """
    start = answer.start[0, 1]
    mean = start if answer.end is None else 0.5 * (start + answer.end[0, 1].nan_to_num(float(start)))
    logit = answer.variance[0, 1].sqrt() / (start * (1 - start)).clamp_min(1e-12)
    return -0.5 * ((mean - expected) / (COUNTS.answer_differs + 0.25 * logit)).square()


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
