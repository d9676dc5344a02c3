"""Lattice fit: label counts of an untrained model that drifts during local training, or whose update was scaled.

While a model does not look at its input, all classes that a client lacks (or nearly lacks) share one fate: whatever the
major classes do, their probabilities keep their proportions. So over the local steps their mean probability sums to

    T p_start                   a slow drift, with one unknown T <= S (T = S: none), or
    p_start + T p_end           a violent one: after the first step the model has become another,

and the counts b (sum - beta) must be whole and not negative. T is read off the update itself: it is the value at which
they are. A clipped update is the same with a smaller spacing, T / S. The few major classes share what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.major_classes import by_push, calmness, shared
from fedspill.leaks.labels.counts.posterior import CountGrid
from fedspill.leaks.labels.counts.whole_counts import Steps, lattice_points, log_likelihood

SLOW: Final = 0
VIOLENT: Final = 1
SCALED: Final = 2

_SMALL = 4.5  # counts below are held against the lattice
_NEGATIVE = -0.6
_EXCLUDED = 0.08  # what leaving a class out of the lattice costs
_SPACINGS = (1.0, 0.93, 0.86)  # a sample raises its own class a little for the steps that follow
_DAMPING = 0.25  # how far the trained model's probabilities say where the mass went on the way
_CELLS = 4_000_000
_TOLD_APART = 12.0  # counts above are too many to be told apart by their distance from whole numbers
_MANY_EACH = 5  # samples per class from which hardly any class is absent
_TYPICALLY_WHOLE = 0.05  # the median distance of such counts
_READ_AS = 0.8  # of what major classes read as, at least, is there; samples of a short step weigh more
_AT_ZERO, _SPREADS = 0.2, 6.0  # an absent class lies this near zero, or within so many typical distances
_WHOLE = 0.03  # mean squared distance of counts that are whole; 0.083 is that of any number


@dataclass(frozen=True, eq=False)
class Lattice:
    """The best fit of each origin."""

    score: Tensor  # (origins,) squared distances from the lattice, summed; a fair fit has under 0.03 per class
    kind: Tensor  # (origins,) SLOW, VIOLENT or SCALED
    time: Tensor  # (origins,) T
    spacing: Tensor  # (origins,)
    amounts: Tensor  # (origins, classes) counts before rounding, in samples
    small: Tensor  # (origins, classes) bool: on the lattice
    noise: Tensor  # (origins,) typical distance from it


def fit(bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> Lattice:
    """bias (origins, classes) summed over steps; start and end (origins, classes) mean probabilities."""
    rows = max(1, _CELLS // (bias.shape[1] * 320 * 8))
    parts = [
        _fit(bias[i : i + rows], start[i : i + rows], None if end is None else end[i : i + rows], steps)
        for i in range(0, len(bias), rows)
    ]
    return Lattice(*(torch.cat([getattr(part, name) for part in parts]) for name in Lattice.__dataclass_fields__))


def _fit(bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> Lattice:
    number = steps.number
    slow = torch.cat([torch.linspace(0.02, 1, 25), torch.linspace(1.05, number, 60)]).double()
    slow = slow[slow <= number] if number > 1 else torch.tensor([1.0], dtype=torch.float64)
    kinds, times, spacings, amounts = [], [], [], []
    for closer in _SPACINGS if number > 1 else (1.0,):
        kinds.append(torch.full_like(slow, SLOW))
        times.append(slow)
        spacings.append(torch.full_like(slow, closer))
        amounts.append(steps.unit * (slow[:, None] * start[:, None] - bias[:, None]) / closer)
    share = torch.logspace(-2, 0, 61, dtype=torch.float64)[:-3]  # scales from 0.01 to 0.89
    kinds.append(torch.full_like(share, SCALED))
    times.append(share * number)
    spacings.append(share)
    amounts.append(steps.unit * (number * start[:, None] - bias[:, None] / share[:, None]))
    if end is not None and number > 2:
        violent = torch.linspace(0.3 * number, number, 60, dtype=torch.float64)
        kinds.append(torch.full_like(violent, VIOLENT))
        times.append(violent)
        spacings.append(torch.ones_like(violent))
        amounts.append(steps.unit * (start[:, None] + violent[:, None] * end[:, None] - bias[:, None]))
    kind, time, spacing = (torch.cat(part) for part in (kinds, times, spacings))
    x = torch.cat(amounts, 1)  # (origins, candidates, classes)
    small = (x > _NEGATIVE) & (x < _SMALL)
    nearest, distance = _to_lattice(x, steps)
    total = (nearest * small).sum(2)
    missing = steps.samples - total
    score = (distance.square() * small).sum(2) + _EXCLUDED * (~small).sum(2)
    score = score + 0.3 * (1 - spacing) * (kind == SLOW) + 0.05 * (kind == SCALED) + 1.0 * (kind == VIOLENT)
    # At least half of the classes must be on the lattice, and something must be left for the others, or nothing at all.
    # Drift makes classes read as less than they are, never as more: the others must get what they read as.
    possible = (small.sum(2) >= 0.5 * x.shape[2]) & (missing >= 0) & ((missing == 0) | (~small).any(2))
    possible &= (kind != SLOW) | (missing >= _READ_AS * (x.clamp_min(0) * ~small).sum(2))
    score = score.masked_fill(~possible, torch.inf)
    best = score.argmin(1)
    row = torch.arange(len(x))
    kept, read = small[row, best], x[row, best]
    off = torch.where(kept, distance[row, best].abs(), torch.nan)
    noise = off.nanmedian(1).values.nan_to_num(0.5)
    # Absent classes share one fate and all lie at zero: a small one that does not had a sample, which raised it.
    away = read.abs() > (_SPREADS * noise).clamp_min(_AT_ZERO)[:, None]
    risen = (kind[best] == SLOW)[:, None] & kept & (read < 0.5) & away
    return Lattice(
        score[row, best],
        kind[best],
        time[best],
        spacing[best],
        torch.where(risen, torch.ones_like(read), read),
        kept,
        noise,
    )


def undrifted(bias: Tensor, start: Tensor, steps: Steps) -> Tensor:
    """(origins,) whether the counts are whole as they stand, with the starting probabilities in every step.

    The fit above cannot tell T from a T at which every class has one sample less, once most classes have some. So T = S
    comes first where it fits and some class reads as absent, and where counts are too large to tell.
    """
    x = steps.unit * (steps.number * start - bias)
    small = (x > _NEGATIVE) & (x < _TOLD_APART)
    _, distance = _to_lattice(x, steps, most=int(_TOLD_APART))
    misfit = (distance.square() * small).sum(1) / small.sum(1).clamp_min(1)
    some_absent = (x < 0.5).any(1) | (steps.samples >= _MANY_EACH * x.shape[1])
    return (misfit < _WHOLE) & some_absent & ~(x < _NEGATIVE).any(1)


def unscaled(bias: Tensor, start: Tensor, steps: Steps) -> Tensor:
    """(origins,) whether the counts of most classes that are there, but not often, are whole as they stand.

    Whole numbers fit a lattice of half the spacing as well, so an update counts as scaled only where they are not.
    """
    x = steps.unit * (steps.number * start - bias)
    there = (x > 0.3) & (x < _TOLD_APART)
    _, distance = _to_lattice(x, steps, most=int(_TOLD_APART))
    typical = torch.where(there, distance.abs(), torch.nan).nanmedian(1).values
    return typical < _TYPICALLY_WHOLE


def _to_lattice(x: Tensor, steps: Steps, most: int = int(_SMALL) + 1) -> tuple[Tensor, Tensor]:
    """The count of the nearest lattice point and the distance from it; a sample in the short step weighs more."""
    points, counts, penalty = lattice_points(most, steps)
    nearest = torch.zeros_like(x)
    distance = torch.full_like(x, torch.inf)
    cost = torch.full_like(x, torch.inf)
    for point, count, extra in zip(points, counts, penalty, strict=True):
        off = x - point
        here = off.square() + extra
        better = here < cost
        cost = torch.where(better, here, cost)
        nearest = torch.where(better, torch.full_like(x, count), nearest)
        distance = torch.where(better, off, distance)
    return nearest, distance


def lattice_table(
    found: Lattice, bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps, *, doubt: bool
) -> tuple[Tensor, CountGrid]:
    """Log-likelihoods (origins, classes, points): sharp for classes on the lattice, broad for the major ones.

    The decision is taken without `doubt` about the major classes' share, lest a prior that knows less moves it; how
    sure one can be of it is said with it.
    """
    middle, spread = _major(found, bias, start, end, steps)
    spread = spread if doubt else torch.full_like(spread, 0.5)
    noise = torch.where(found.small, (1.5 * found.noise[:, None]).clamp(0.02, 0.4), spread)
    amounts = torch.where(found.small, found.amounts, middle)
    reach = 6 * noise + 2
    grid = CountGrid.around(amounts / steps.heaviest - reach, amounts + reach, steps.samples)
    sharp = log_likelihood(found.amounts, grid.counts, noise, steps)
    broad = -0.5 * ((grid.counts - middle[..., None]) / noise[..., None]).square()
    return torch.where(found.small[..., None], sharp, broad), grid


def _major(found: Lattice, bias: Tensor, start: Tensor, end: Tensor | None, steps: Steps) -> tuple[Tensor, Tensor]:
    """How the samples that are left are shared by the classes off the lattice: amounts and their spread.

    A slow drift is followed (label_split.py); in a violent one the mass of probability that is left goes where the
    model puts it, damped since the way there is not known.
    """
    nearest, _ = _to_lattice(found.amounts, steps)
    left = (steps.samples - (nearest * found.small).sum(1, keepdim=True)).clamp_min(0)
    # A rare class that led for a step or two reads as less than none. It gets one sample; where only one other class is
    # major, it may be the second.
    led = ~found.small & (found.amounts <= _NEGATIVE) & (found.kind == SLOW)[:, None]
    led &= (~found.small & ~led).any(1, keepdim=True)
    major = ~found.small & ~led
    doubt_of_led = torch.where(major.sum(1, keepdim=True) > 1, 1.0, left)
    left = (left - led.sum(1, keepdim=True)).clamp_min(0)
    if end is None:
        pushed = by_push(bias, major, left)
        return pushed + led, torch.where(led, doubt_of_led, 0.3 * pushed + 0.5)
    mass = (left / steps.unit + (bias * major).sum(1, keepdim=True)).clamp_min(0)  # of the major classes' probabilities
    violent = (found.kind == VIOLENT)[:, None]
    damped = _shared(mass, end.clamp_min(1e-12).pow(_DAMPING) * major, bias, left, steps)
    followed = shared(bias, major, left, start, end, found.time, steps.samples, steps.number)
    middle = torch.where(violent, damped, followed)
    spread = torch.where(violent, 0.25, 0.3 - 0.27 * calmness(found.time, steps.number)) * middle + 0.5
    # A scaled update did not drift: its major classes are as well known as the others.
    scaled = (found.kind == SCALED)[:, None]
    amounts = found.amounts.clamp_min(0) * major
    exact = amounts * left / amounts.sum(1, keepdim=True).clamp_min(1e-12)
    middle, spread = torch.where(scaled, exact, middle), torch.where(scaled, 0.02 * exact + 0.5, spread)
    return middle + led, torch.where(led, doubt_of_led, spread)


def _shared(mass: Tensor, inclination: Tensor, bias: Tensor, left: Tensor, steps: Steps) -> Tensor:
    """Amounts (origins, classes) if the probability mass (origins, 1) is shared by inclination; they sum to `left`."""
    share = inclination / inclination.sum(1, keepdim=True).clamp_min(1e-12)
    amounts = (steps.unit * (mass * share - bias) * (inclination > 0)).clamp_min(0)
    return left * amounts / amounts.sum(1, keepdim=True).clamp_min(1e-12)
