"""Whole label counts from a bias gradient whose mean probability is known, short last batches included.

Let b be the samples of an ordinary step and r those of the short last one. With mean probability p over S steps,

    x_i = b (S p_i - beta_i) = k_i + (b/r) l_i,

where k_i samples of class i sat in ordinary steps and l_i in the short one. Which of the N samples the short step drew
is chance, so l_i given the total n_i = k_i + l_i is hypergeometric. The decoder takes the most probable (n_i, l_i) for
each class and then moves the cheapest classes by one until the counts add up to N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.federation.schedule import Schedule

_REACH = 3  # how far from the rounded value a count is looked for
_CELLS = 20_000_000  # elements of the largest intermediate table


def decode_counts(bias: Tensor, mean_probability: Tensor, schedule: Schedule) -> Tensor:
    """Counts (batches, classes) int64 that add up to the schedule's samples.

    bias (batches, classes): step gradients summed over one pass; mean_probability: the same shape or broadcastable.
    """
    steps = schedule.steps // schedule.epochs
    short = schedule.last if schedule.full_steps and schedule.epochs == 1 else 0
    # Over several passes the short step draws anew each time; its weight then averages to N/S samples per unit.
    unit = schedule.per_step if short or not schedule.last else schedule.samples / steps
    observed = unit * (steps * mean_probability - bias)
    if short:
        # The short step weighs the sum like b more samples did, so N is reached by k + l, not by x.
        scale = schedule.per_step / short
        start = (observed * schedule.samples / (unit * steps)).round().clamp_min(0)
    else:
        scale = 1.0
        start = observed.round().clamp_min(0)
    noise = _spread(observed)
    rows = max(1, _CELLS // (observed.shape[1] * (2 * _REACH + 1) * (_window(short) + 1)))
    parts = zip(*(torch.split(part, rows) for part in (observed, start, noise)), strict=True)
    return torch.cat([_decode(x, s, n, schedule.samples, short, scale) for x, s, n in parts])


def _decode(x: Tensor, start: Tensor, noise: Tensor, samples: int, short: int, scale: float) -> Tensor:
    offsets = torch.arange(-_REACH, _REACH + 1)
    totals = start[:, :, None] + offsets  # (batches, classes, candidates)
    cost = _cost(x, totals, noise, samples, short, scale)
    best = cost.argmin(2)
    return _balanced(cost, best, start.long() - _REACH, samples)


def _cost(x: Tensor, totals: Tensor, noise: Tensor, samples: int, short: int, scale: float) -> Tensor:
    """Minus log posterior of each candidate total, the best split between ordinary and short step taken."""
    window = _window(short)
    expected = totals * (short / samples)
    first = (expected - window / 2).round().clamp(min=0, max=max(short - window, 0))
    drawn = first[..., None] + torch.arange(window + 1)  # l
    kept = totals[..., None] - drawn  # k
    miss = x[:, :, None, None] - kept - scale * drawn
    cost = miss**2 / (2 * noise[:, :, None, None] ** 2) - _log_hypergeometric(drawn, totals[..., None], samples, short)
    impossible = (drawn > short) | (kept < 0) | (totals[..., None] > samples)
    cost = cost.masked_fill(impossible, torch.inf).amin(3)
    return cost.masked_fill(totals < 0, torch.inf)


def _window(short: int) -> int:
    """How many values of l are tried: all when they are few, else about four standard deviations to either side."""
    return min(short, 12 + int(4 * short**0.5))


def _log_hypergeometric(drawn: Tensor, total: Tensor, samples: int, short: int) -> Tensor:
    """log P(l = drawn) when `short` of `samples` are drawn and `total` belong to the class."""
    if short == 0:
        return torch.zeros_like(drawn)
    total = total.clamp(0, samples)
    return (
        _log_choose(total, drawn)
        + _log_choose(samples - total, short - drawn)
        - _log_choose(torch.tensor(float(samples)), torch.tensor(float(short)))
    )


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    k = torch.minimum(k.clamp_min(0), n)
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _spread(observed: Tensor) -> Tensor:
    """The noise of x (batches, 1) seen on classes that are surely absent or rare: their distance to whole numbers."""
    rare = observed.abs() < 0.5
    distance = torch.where(rare, observed.abs(), torch.nan)
    typical = distance.nanmedian(dim=1, keepdim=True).values.nan_to_num(0.25)
    return (1.5 * typical).clamp(0.02, 0.5)


def _balanced(cost: Tensor, best: Tensor, base: Tensor, samples: int) -> Tensor:
    """Moves the cheapest classes by one until each row adds up to `samples`; the last resort is the largest class."""
    counts = base + best
    while True:
        lacking = samples - counts.sum(1)
        rows = lacking.nonzero().flatten()
        if len(rows) == 0:
            return counts
        direction = lacking.sign()
        moved = best + direction[:, None]
        now = cost.gather(2, best[..., None]).squeeze(2)
        then = cost.gather(2, moved.clamp(0, cost.shape[2] - 1)[..., None]).squeeze(2)
        price = (then - now).masked_fill((moved < 0) | (moved >= cost.shape[2]), torch.inf).nan_to_num(torch.inf)
        cheapest = price.argmin(1)
        for row in rows.tolist():
            column = int(cheapest[row])
            if torch.isinf(price[row, column]):  # nothing within reach: the class with most samples takes the rest
                counts[row] = _apportioned(counts[row], samples)
            else:
                best[row, column] += direction[row]
                counts[row, column] += direction[row]


def _apportioned(counts: Tensor, samples: int) -> Tensor:
    """Counts scaled to the right sum by largest remainder."""
    weights = counts.double().clamp_min(0)
    share = samples * (weights / weights.sum() if weights.sum() > 0 else torch.full_like(weights, 1 / len(weights)))
    whole = share.floor().long()
    order = (share - whole).argsort(descending=True, stable=True)
    whole[order[: samples - int(whole.sum())]] += 1
    return whole
