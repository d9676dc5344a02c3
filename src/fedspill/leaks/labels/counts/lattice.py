"""Lattice fit: label counts of an untrained model that drifts during local training.

While a model does not look at its input, its answer changes from step to step, but in the same way for all samples.
The classes that a client lacks are never pushed up, so that their probabilities keep their proportions, and over the S
local steps the mean probability of such a class sums to

    T p_start            in a slow drift, with one unknown T <= S for all classes (T = S: no drift), or
    p_start + T p_end    in a violent one: after the first step the model has become another.

A class with few samples does nearly the same, so that b (sum - beta) is its count: a whole number, not negative. The
update itself tells T: it is the value at which these numbers are whole for most classes. The samples that are left then
belong to the few major classes, which drove the drift, and major_classes.py says how they share them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.major_classes import by_push, calmness, shared
from fedspill.leaks.labels.counts.posterior import CountGrid, Posterior, posterior
from fedspill.leaks.labels.counts.whole_counts import Steps, lattice_points, log_likelihood

_AT_ONCE = 4_000_000  # numbers of a table of all times (convention)


@dataclass(frozen=True, eq=False)
class Lattice:
    """The best fit of each origin."""

    score: Tensor  # (origins,) squared distances from whole numbers, summed over classes; infinite where none fits
    violent: Tensor  # (origins,) bool
    time: Tensor  # (origins,) T
    amounts: Tensor  # (origins, classes) counts before rounding, in samples
    small: Tensor  # (origins, classes) bool: on the lattice
    noise: Tensor  # (origins,) typical distance from it
    tried: int  # from how many times the best was taken

    def stands_out(self) -> Tensor:
        """(origins,) whether whole numbers are nearer than the best of so many times brings them by chance.

        Any number is within half of a whole one: its squared distance has mean 1/12 and variance 1/180. The least of n
        normal draws lies about (2 log n)^(1/2) deviations below their mean.
        """
        classes = self.small.shape[1]
        luck = math.sqrt(2 * math.log(self.tried) * classes / 180)
        return self.score < classes / 12 - luck

    def left_over(self, steps: Steps) -> Tensor:
        """(origins, 1) the samples that the classes on the lattice leave to the others."""
        nearest, _ = _to_lattice(self.amounts, steps)
        return (steps.samples - (nearest * self.small).sum(1, keepdim=True)).clamp_min(0)


def fit(bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> Lattice:
    """bias (origins, classes) summed over steps; start and end (origins, classes) mean probabilities."""
    rows = max(1, _AT_ONCE // (bias.shape[1] * 320 * 8))
    parts = [
        _fit(bias[i : i + rows], start[i : i + rows], None if end is None else end[i : i + rows], steps)
        for i in range(0, len(bias), rows)
    ]
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(Lattice)
        if field.name != "tried"
    }
    return Lattice(**joined, tried=parts[0].tried)


def _fit(bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> Lattice:
    number = steps.number
    times = torch.cat([torch.linspace(0.02, 1, 25), torch.linspace(1.05, max(number, 1.05), 60)]).double()
    times = times[times <= number] if number > 1 else torch.tensor([1.0], dtype=torch.float64)
    amounts = steps.unit * (times[:, None] * start[:, None] - bias[:, None])
    violent = torch.zeros(len(times), dtype=torch.bool)
    if end is not None and number > 2:
        later = torch.linspace(0.3 * number, number, 60, dtype=torch.float64)
        after = steps.unit * (start[:, None] + later[:, None] * end[:, None] - bias[:, None])
        times, amounts = torch.cat([times, later]), torch.cat([amounts, after], 1)
        violent = torch.cat([violent, torch.ones(len(later), dtype=torch.bool)])
    small = (amounts > COUNTS.negative) & (amounts < COUNTS.small)  # (origins, times, classes)
    nearest, distance = _to_lattice(amounts, steps)
    missing = steps.samples - (nearest * small).sum(2)
    score = (distance.square() * small).sum(2) + COUNTS.excluded * (~small).sum(2) + COUNTS.violent_cost * violent
    # Half of the classes must be on the lattice, or it is none. What they leave must be there and must be somebody's.
    possible = (small.sum(2) >= 0.5 * small.shape[2]) & (missing >= 0) & ((missing == 0) | (~small).any(2))
    # Drift makes a class read as less than it is, never as more: the major classes must get what they read as.
    possible &= violent | (missing >= COUNTS.read_as * (amounts.clamp_min(0) * ~small).sum(2))
    score = score.masked_fill(~possible, torch.inf)
    row, best = torch.arange(len(bias)), score.argmin(1)
    kept, read = small[row, best], amounts[row, best]
    noise = torch.where(kept, distance[row, best].abs(), torch.nan).nanmedian(1).values.nan_to_num(0.5)
    return Lattice(score[row, best], violent[best], times[best], read, kept, noise, len(times))


def _to_lattice(amounts: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """The count of the nearest lattice point and the distance from it; a sample in the short step weighs more."""
    points, counts, penalty = lattice_points(int(COUNTS.small) + 1, steps)
    nearest, distance, cost = (torch.full_like(amounts, value) for value in (0.0, torch.inf, torch.inf))
    for point, count, extra in zip(points, counts, penalty, strict=True):
        off = amounts - point
        better = off.square() + extra < cost
        cost = torch.where(better, off.square() + extra, cost)
        nearest = torch.where(better, torch.full_like(amounts, count), nearest)
        distance = torch.where(better, off, distance)
    return nearest, distance


def lattice_posterior(
    found: Lattice, bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps, *, doubt: bool
) -> Posterior:
    """Sharp for the classes on the lattice, broad for the major ones; its evidence is a log density, in samples.

    With `doubt` the major classes are as uncertain as their share is. Counts are decided without it: a prior that knows
    less than the reading of their way would otherwise move them.
    """
    middle, spread = _major(found, bias, start, end, steps)
    noise = torch.where(found.small, (1.5 * found.noise[:, None]).clamp(0.02, 0.4), spread if doubt else 0.5)
    amounts = torch.where(found.small, found.amounts, middle)
    reach = 6 * noise + 2
    grid = CountGrid.around(amounts / steps.heaviest - reach, amounts + reach, steps.samples)
    sharp = log_likelihood(found.amounts, grid.counts, noise, steps)
    broad = -0.5 * ((grid.counts - middle[..., None]) / noise[..., None]).square()
    known = posterior(torch.where(found.small[..., None], sharp, broad), grid, steps.samples)
    return replace(known, evidence=known.evidence - (math.sqrt(2 * math.pi) * noise).log().sum(1))


def _major(found: Lattice, bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> tuple[Tensor, Tensor]:
    """What the classes off the lattice have of the samples that are left, and how uncertain: (origins, classes).

    A rare class can lead for a step or two and then reads as less than none. It gets one sample. Where only one other
    class is major it may as well be the second major one: no reading of the last bias can tell, so it is as uncertain
    as all that is left.
    """
    left = found.left_over(steps)
    led = ~found.small & (found.amounts <= COUNTS.negative) & ~found.violent[:, None]
    led &= (~found.small & ~led).any(1, keepdim=True)
    major = ~found.small & ~led
    doubt_of_led = torch.where(major.sum(1, keepdim=True) > 1, 1.0, left)
    left = (left - led.sum(1, keepdim=True)).clamp_min(0)
    if end is None:
        middle = by_push(bias, major, left)
        spread = 0.3 * middle + 0.5
    else:
        slow = shared(bias, major, left, start, end, found.time, steps.samples, steps.number)
        fast = _where_the_model_leans(bias, major, left, end, steps)
        violent = found.violent[:, None]
        middle = torch.where(violent, fast, slow)
        spread = torch.where(violent, 0.25, 0.3 - 0.27 * calmness(found.time, steps.number)) * middle + 0.5
    return middle + led, torch.where(led, doubt_of_led, spread)


def _where_the_model_leans(bias: Tensor, major: Tensor, left: Tensor, end: Tensor, steps: Steps) -> Tensor:
    """Amounts (origins, classes), if the probability of the major classes went where the model after leans to.

    Their probability in all is known, since the samples are. It is shared by the model's answer after training, damped,
    because the way there is not known.
    """
    mass = (left / steps.unit + (bias * major).sum(1, keepdim=True)).clamp_min(0)
    inclination = end.clamp_min(1e-12).pow(COUNTS.damping) * major
    share = inclination / inclination.sum(1, keepdim=True).clamp_min(1e-12)
    amounts = (steps.unit * (mass * share - bias) * major).clamp_min(0)
    return left * amounts / amounts.sum(1, keepdim=True).clamp_min(1e-12)
