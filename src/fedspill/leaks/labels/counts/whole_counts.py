"""Whole label counts from a bias gradient whose mean probability is known, short last batches included.

Let b be the samples of an ordinary step and r those of the short last one. With mean probability p over S steps,

    x_i = b (S p_i - beta_i) = k_i + (b/r) l_i,

where k_i samples of class i sat in ordinary steps and l_i in the short one. Which of the N samples the short step drew
is chance, so l_i given the total n_i = k_i + l_i is hypergeometric. The likelihood of each total sums over l_i; the
totals of all classes then add up to N (posterior.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.posterior import CountGrid, Posterior, more_likely, posterior
from fedspill.training import Schedule


@dataclass(frozen=True, slots=True)
class Steps:
    """The local steps of one pass, as the decoder sees them."""

    samples: int
    number: int  # S
    unit: float  # b: what a gradient is multiplied with to count samples
    short: int  # r; 0 where no step is short, or where the short steps of several passes average out

    @staticmethod
    def of(schedule: Schedule) -> Steps:
        number = schedule.steps // schedule.epochs
        ragged = schedule.last > 0 and schedule.full_steps > 0
        if ragged and schedule.epochs == 1:
            return Steps(schedule.samples, number, schedule.per_step, schedule.last)
        # Over several passes the short step draws anew each time; its weight averages to N/S samples per unit.
        unit = schedule.samples / number if ragged else schedule.per_step
        return Steps(schedule.samples, number, float(unit), 0)

    @property
    def heaviest(self) -> float:
        """What a sample of the short step weighs, an ordinary one being 1."""
        return self.unit / self.short if self.short else 1.0


def decoded(observed: Tensor, steps: Steps, least_noise: Tensor | None = None) -> Posterior:
    """The counts behind x (batches, classes), whose noise is not known: the level with most evidence is taken.

    least_noise (batches, classes): what is known of it beforehand.
    """
    found: Posterior | None = None
    for level in COUNTS.noises:
        noise = torch.full_like(observed, level)
        noise = noise if least_noise is None else (noise.square() + least_noise.square()).sqrt()
        table, grid = amount_table(observed, noise, steps)
        here = posterior(table - (math.sqrt(2 * math.pi) * noise).log()[..., None], grid, steps.samples)
        found = here if found is None else more_likely(found, here)
    assert found is not None
    return found


def amount_table(observed: Tensor, noise: Tensor, steps: Steps) -> tuple[Tensor, CountGrid]:
    """Log-likelihoods (batches, classes, points) of the counts behind observed x (batches, classes) with that noise."""
    reach = 6 * noise + 2
    grid = CountGrid.around(observed / steps.heaviest - reach, observed + reach, steps.samples)
    return log_likelihood(observed, grid.counts, noise, steps), grid


def log_likelihood(observed: Tensor, totals: Tensor, noise: Tensor, steps: Steps) -> Tensor:
    """Of totals (batches, classes, points), given x and its noise (batches, classes); the same shape as totals."""
    window = _window(steps.short)
    rows = max(1, COUNTS.cells // (totals.shape[1] * totals.shape[2] * (window + 1)))
    noise = noise.expand_as(observed)
    parts = zip(*(torch.split(part, rows) for part in (observed, totals, noise)), strict=True)
    return torch.cat([_log_likelihood(x, t, n, steps, window) for x, t, n in parts])


def _log_likelihood(x: Tensor, totals: Tensor, noise: Tensor, steps: Steps, window: int) -> Tensor:
    if not steps.short:
        return -0.5 * ((x[..., None] - totals) / noise[..., None]).square()
    expected = totals * (steps.short / steps.samples)
    first = (expected - window / 2).round().clamp(min=0, max=max(steps.short - window, 0))
    drawn = first[..., None] + torch.arange(window + 1)  # l
    kept = totals[..., None] - drawn  # k
    miss = x[..., None, None] - kept - steps.heaviest * drawn
    fit = -0.5 * (miss / noise[..., None, None]).square()
    fit = fit + _log_hypergeometric(drawn, totals[..., None], steps.samples, steps.short)
    impossible = (drawn > steps.short) | (kept < 0) | (totals[..., None] > steps.samples)
    return fit.masked_fill(impossible, -torch.inf).logsumexp(3)


def lattice_points(most: int, steps: Steps) -> tuple[list[float], list[float], list[float]]:
    """Values that x takes for totals up to `most`, the totals, and a small penalty for the rare ones."""
    found = []
    for total in range(most + 1):
        for late in range(min(total, steps.short) + 1):
            found.append((total - late + steps.heaviest * late, float(total), 0.012 * late))
    points, totals, penalties = zip(*found, strict=True)
    return list(points), list(totals), list(penalties)


def _window(short: int) -> int:
    """How many values of l are tried: all when they are few, else about four standard deviations to either side."""
    return min(short, 12 + int(4 * short**0.5))


def _log_hypergeometric(drawn: Tensor, total: Tensor, samples: int, short: int) -> Tensor:
    """log P(l = drawn) when `short` of `samples` are drawn and `total` belong to the class."""
    total = total.clamp(0, samples)
    return (
        _log_choose(total, drawn)
        + _log_choose(samples - total, short - drawn)
        - _log_choose(torch.tensor(float(samples)), torch.tensor(float(short)))
    )


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    k = torch.minimum(k.clamp_min(0), n)
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
