"""From what each class's gradient says about its count to whole counts, with how sure they are.

Every route of the `labels` attack ends in one table: for each class the log-likelihood of having k samples. This file
adds what is known of all classes together: the counts sum to the batch, and they come from some prior that nobody told
the adversary. Even, skewed and sparse priors are mixed by how well each explains the table. The decision maximises the
expected success rate: since E[sum_c min(guess_c, count_c)] is the sum of P(count_c >= k) over k <= guess_c, the best
guess takes the B largest of all those tail probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS

_RATHER_EVEN = ("even", "skewed 4")


@dataclass(frozen=True, eq=False)
class CountGrid:
    """The counts that are weighed for each class: first + stride * (0 ... points - 1)."""

    first: Tensor  # (origins, classes)
    stride: Tensor  # (origins, classes)
    points: int

    @staticmethod
    def around(low: Tensor, high: Tensor, samples: int, most: int = COUNTS.most_points) -> CountGrid:
        """Covers [low, high] (origins, classes) with at most `most` points a class, each count where they suffice."""
        first = low.floor().clamp(0, samples)
        span = high.ceil().clamp(0, samples) - first + 1
        points = int(min(most, max(2, int(span.max()))))
        return CountGrid(first, (span / points).ceil().clamp_min(1), points)

    @property
    def counts(self) -> Tensor:
        """(origins, classes, points)"""
        return self.first[..., None] + self.stride[..., None] * torch.arange(self.points, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known about each class's count."""

    grid: CountGrid
    marginals: Tensor  # (origins, classes, points) probabilities
    weights: Tensor  # (origins, priors) probabilities
    evidence: Tensor  # (origins,) log-probability of what was observed
    samples: int

    def where(self, take: Tensor, other: Posterior) -> Posterior:
        """Of the origins that `take` (origins,) names this one, of the rest the other, each on its own grid."""
        points = max(self.grid.points, other.grid.points)
        first, second = (_padded(one, points) for one in (self, other))
        wide, cube = take[:, None], take[:, None, None]
        grid = CountGrid(
            torch.where(wide, first.grid.first, second.grid.first),
            torch.where(wide, first.grid.stride, second.grid.stride),
            points,
        )
        return Posterior(
            grid,
            torch.where(cube, first.marginals, second.marginals),
            torch.where(wide, first.weights, second.weights),
            torch.where(take, first.evidence, second.evidence),
            self.samples,
        )

    @property
    def evenness(self) -> Tensor:
        """(origins,) the probability that labels are spread evenly over the classes, or mildly unevenly."""
        names = _priors(self.marginals.shape[1], self.samples).names
        return self.weights[:, [index for index, name in enumerate(names) if name in _RATHER_EVEN]].sum(1)

    @property
    def mean(self) -> Tensor:
        return (self.marginals * self.grid.counts).sum(2)


def posterior(
    log_likelihood: Tensor, grid: CountGrid, samples: int, likely: Tensor | None = None, *, favoured: bool = False
) -> Posterior:
    """Marginals of the counts that sum to `samples`; log_likelihood (origins, classes, points).

    likely (priors,) bool: the priors worth trying, after an earlier look at the same origins. favoured: some priors
    more, of a few large classes before an even rest; they matter where noise leaves the rest to the prior.
    """
    priors = _priors(log_likelihood.shape[1], samples, favoured)
    highest_each = log_likelihood.amax(2, keepdim=True)
    table = (log_likelihood - highest_each).clamp_min(COUNTS.floor)
    table = table.masked_fill(grid.counts > samples, -torch.inf) + grid.stride.log()[..., None]
    where = grid.counts.long().clamp_max(samples)
    evidence = torch.full((len(table), len(priors.names)), -torch.inf, dtype=torch.float64)
    best = torch.full((len(table),), -torch.inf, dtype=torch.float64)
    total = torch.zeros_like(table)
    for index in range(len(priors.names)) if likely is None else likely.nonzero().flatten().tolist():
        marginals, found = _summing_to(table + priors.tables[index][where], grid.counts, samples)
        evidence[:, index] = found - priors.normalisers[index]
        # Kept as a running mixture: no more than one table at a time.
        highest = torch.maximum(best, evidence[:, index])
        total = total * (best - highest).exp()[:, None, None]
        total = total + marginals * (evidence[:, index] - highest).exp()[:, None, None]
        best = highest
    observed = evidence.logsumexp(1) + highest_each.sum((1, 2))
    total = total / total.sum(2, keepdim=True).clamp_min(1e-300)
    return Posterior(grid, total, evidence.softmax(1), observed, samples)


def more_likely(first: Posterior, second: Posterior) -> Posterior:
    """Of two readings of the same origins the one with more evidence."""
    return second.where(second.evidence > first.evidence, first)


def _padded(one: Posterior, points: int) -> Posterior:
    """The same on a grid with more points, all improbable."""
    more = torch.zeros(*one.marginals.shape[:2], points - one.grid.points, dtype=one.marginals.dtype)
    grid = CountGrid(one.grid.first, one.grid.stride, points)
    return Posterior(grid, torch.cat([one.marginals, more], 2), one.weights, one.evidence, one.samples)


@dataclass(frozen=True, eq=False)
class _Priors:
    names: tuple[str, ...]
    tables: Tensor  # (priors, samples + 1) log-probabilities of one class's count
    normalisers: Tensor  # (priors,) log-probability that the classes' counts add up to the samples


@lru_cache(maxsize=16)
def _priors(classes: int, samples: int, favoured: bool = False) -> _Priors:
    names, tables = count_priors(classes, samples)
    if favoured:
        more, laws = favoured_priors(classes, samples)
        names, tables = names + more, torch.cat([tables, laws])
    normalisers = torch.stack([_normaliser(table, classes, samples) for table in tables])
    return _Priors(names, tables, normalisers)


def count_priors(classes: int, samples: int) -> tuple[tuple[str, ...], Tensor]:
    """Names, and log-probabilities (priors, samples + 1) of one class's count.

    Even: i.i.d. labels over all classes. Skewed: negative binomial of two dispersions. Sparse: most classes absent, the
    others by a power law.
    """
    k = torch.arange(samples + 1, dtype=torch.float64)
    mean = torch.tensor(samples / classes, dtype=torch.float64)
    names, tables = ["even"], [k * mean.log() - mean - torch.lgamma(k + 1)]
    for dispersion in (0.3, 4.0):
        r = torch.tensor(dispersion, dtype=torch.float64)
        tables.append(
            torch.lgamma(k + r)
            - torch.lgamma(r)
            - torch.lgamma(k + 1)
            + r * (r / (r + mean)).log()
            + k * (mean / (r + mean)).log()
        )
        names.append(f"skewed {dispersion:g}")
    law = k.clamp_min(1).pow(-2)
    law[0] = 0
    law = 0.2 * law / law.sum()
    law[0] = 0.8
    return (*names, "sparse"), torch.stack([*tables, law.log()])


def favoured_priors(classes: int, samples: int) -> tuple[tuple[str, ...], Tensor]:
    """Names and log-probabilities (priors, samples + 1): a few classes of any size, and an even rest."""
    k = torch.arange(samples + 1, dtype=torch.float64)
    anything = torch.full_like(k, 1 / max(samples, 1))
    anything[0] = 0
    names, laws = [], []
    for rest in (0.1, 0.25, 0.5):
        mean = torch.tensor(rest * samples / classes, dtype=torch.float64)
        even = (k * mean.log() - mean - torch.lgamma(k + 1)).exp()
        for large in (1, 2, 4):
            share = min(large / classes, 0.5)
            laws.append(((1 - share) * even + share * anything).log())
            names.append(f"favoured {large} {rest:g}")
    return tuple(names), torch.stack(laws)


def _normaliser(prior: Tensor, classes: int, samples: int) -> Tensor:
    """log P(sum = samples) of `classes` independent counts with that log-probability (samples + 1,)."""
    counts = torch.arange(samples + 1, dtype=torch.float64)[None, None]
    alike = prior[None, None] + 0.0
    tilt, log_mass, mean, variance = _tilted(alike, counts, samples / classes)
    del mean
    total = classes * variance.sum(1)
    gauss = -0.5 * (2 * torch.pi * total.clamp_min(COUNTS.least_variance)).log()
    return (classes * log_mass.sum(1) - tilt * samples + gauss).squeeze(0)


def _summing_to(log_weights: Tensor, counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Marginals of independent weights (origins, classes, points) given their sum, and the log-probability of the sum.

    The weights are tilted until their means add up; the other classes' sum is then close to normal around the rest.
    """
    tilt, log_mass, mean, variance = _tilted(log_weights, counts, samples)
    tilted = (log_weights + tilt[:, None, None] * counts - log_mass[..., None]).exp()
    others_mean = mean.sum(1, keepdim=True) - mean
    others_variance = (variance.sum(1, keepdim=True) - variance).clamp_min(COUNTS.least_variance)
    miss = samples - counts - others_mean[..., None]
    joint = tilted * (-0.5 * miss.square() / others_variance[..., None]).exp()
    total = joint.sum(2, keepdim=True)
    marginals = torch.where(total > 0, joint / total.clamp_min(1e-300), tilted)
    off = samples - mean.sum(1)
    spread = variance.sum(1).clamp_min(COUNTS.least_variance)
    evidence = log_mass.sum(1) - tilt * samples - 0.5 * (2 * torch.pi * spread).log() - 0.5 * off.square() / spread
    return marginals, evidence


def _tilted(log_weights: Tensor, counts: Tensor, target: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tilt (origins,) at which means add up to `target`; there log mass, mean and variance (origins, classes)."""
    origins = len(log_weights)
    low = torch.full((origins,), -30.0, dtype=torch.float64)
    high = torch.full((origins,), 30.0, dtype=torch.float64)
    tilt = torch.zeros(origins, dtype=torch.float64)
    for step in range(COUNTS.newton_steps + 1):
        tilted = log_weights + tilt[:, None, None] * counts
        log_mass = tilted.logsumexp(2)
        share = (tilted - log_mass[..., None]).exp()
        mean = (share * counts).sum(2)
        variance = ((share * counts.square()).sum(2) - mean.square()).clamp_min(0)
        if step == COUNTS.newton_steps:
            break
        excess = mean.sum(1) - target
        low, high = torch.where(excess < 0, tilt, low), torch.where(excess > 0, tilt, high)
        newton = tilt - excess / variance.sum(1).clamp_min(1e-6)
        tilt = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
    return tilt, log_mass, mean, variance


def best_tails(found: Posterior) -> Tensor:
    """Counts (origins, classes) int64 that sum to the samples and take the largest tail probabilities."""
    survival = _survival(found)
    low = torch.zeros(len(survival), dtype=torch.float64)
    high = torch.ones(len(survival), dtype=torch.float64)
    for _ in range(50):
        level = (low + high) / 2
        enough = _above(survival, found.grid, level).sum(1) >= found.samples
        low, high = torch.where(enough, level, low), torch.where(enough, high, level)
    fewer, more = _above(survival, found.grid, high), _above(survival, found.grid, low)
    return _filled(fewer, more, found.samples)


def decide(found: Posterior) -> Tensor:
    """Counts (origins, classes) int64: the best tails, or the means where many samples of all classes are expected.

    The tails are optimal for true probabilities; means forgive a likelihood that is too sure of itself, which it is
    where a class has many samples, or where nothing says that some class stands out.
    """
    many = found.samples > COUNTS.many_each * found.marginals.shape[1]
    take_means = (found.evenness > 0.5) | torch.tensor(many)
    return torch.where(take_means[:, None], rounded_means(found), best_tails(found))


def rounded_means(found: Posterior) -> Tensor:
    """Counts (origins, classes) int64 nearest to the posterior means that sum to the samples."""
    return apportioned(found.mean, found.samples)


def apportioned(amounts: Tensor, samples: int) -> Tensor:
    """Whole counts (origins, classes) nearest to amounts, not negative, that sum to `samples`."""
    amounts = amounts.double().nan_to_num(0.0).clamp_min(0)
    low = amounts.amin(1) - samples - 1
    high = amounts.amax(1) + 1
    for _ in range(60):
        shift = (low + high) / 2
        enough = (amounts - shift[:, None]).round().clamp_min(0).sum(1) >= samples
        low, high = torch.where(enough, shift, low), torch.where(enough, high, shift)
    fewer = (amounts - high[:, None]).round().clamp_min(0).long()
    more = (amounts - low[:, None]).round().clamp_min(0).long()
    return _filled(fewer, more, samples)


def certainty(found: Posterior, counts: Tensor) -> tuple[Tensor, Tensor]:
    """For counts (origins, classes): P(a class's count is exact) (origins, classes), and the expected success rate."""
    survival = _survival(found)
    at = _survival_at(survival, found.grid, counts.double())
    beyond = _survival_at(survival, found.grid, counts.double() + 1)
    exact = (at - beyond).clamp(0, 1)
    reached = _expected_minimum(survival, found.grid, counts)
    return exact, (reached.sum(1) / found.samples).clamp(0, 1)


def interval(found: Posterior) -> tuple[Tensor, Tensor]:
    """(origins, classes) int64 each: bounds between which each class's count lies with probability COUNTS.stated."""
    below = found.marginals.cumsum(2)
    low, high = (((below < level).sum(2)) for level in ((1 - COUNTS.stated) / 2, (1 + COUNTS.stated) / 2))
    last = found.grid.points - 1
    first, stride = found.grid.first, found.grid.stride
    return (first + stride * low.clamp_max(last)).long(), (first + stride * (high.clamp_max(last) + 1) - 1).long()


def _survival(found: Posterior) -> Tensor:
    """P(count >= first + stride * j) (origins, classes, points)."""
    return found.marginals.flip(2).cumsum(2).flip(2).clamp(0, 1)


def _survival_at(survival: Tensor, grid: CountGrid, counts: Tensor) -> Tensor:
    """P(count >= counts), between the points of the grid by a straight line."""
    place = (counts - grid.first) / grid.stride
    low = place.floor().clamp(0, grid.points - 1).long()
    share = (place - low).clamp(0, 1)
    padded = torch.cat([survival, torch.zeros_like(survival[..., :1])], 2)
    here = padded.gather(2, low[..., None]).squeeze(2)
    there = padded.gather(2, (low + 1)[..., None]).squeeze(2)
    return torch.where(place <= 0, torch.ones_like(here), here + share * (there - here))


def _above(survival: Tensor, grid: CountGrid, level: Tensor) -> Tensor:
    """How many k >= 1 have P(count >= k) > level, (origins, classes) int64."""
    passed = (survival > level[:, None, None]).sum(2)  # the first `passed` points of the grid lie above
    last = (passed - 1).clamp_min(0)
    padded = torch.cat([survival, torch.zeros_like(survival[..., :1])], 2)
    here = padded.gather(2, last[..., None]).squeeze(2)
    there = padded.gather(2, (last + 1)[..., None]).squeeze(2)
    fall = (here - there).clamp_min(1e-300)
    within = (((here - level[:, None]) / fall) * grid.stride).floor().clamp_min(0).minimum(grid.stride - 1)
    count = grid.first + last * grid.stride + within
    return torch.where(passed > 0, count, (grid.first - 1).clamp_min(0)).long()


def _expected_minimum(survival: Tensor, grid: CountGrid, counts: Tensor) -> Tensor:
    """E[min(count, counts)] (origins, classes): the tail probabilities up to `counts`, summed."""
    below = torch.minimum(counts.double(), (grid.first - 1).clamp_min(0))  # counts under the grid are certain
    points = grid.first[..., None] + grid.stride[..., None] * torch.arange(grid.points, dtype=torch.float64)
    width = (counts[..., None] - points + 1).clamp_min(0).minimum(grid.stride[..., None])
    width = torch.where(points == 0, (width - 1).clamp_min(0), width)
    return below + (survival * width).sum(2)


def _filled(fewer: Tensor, more: Tensor, samples: int) -> Tensor:
    """`fewer`, and of the classes where `more` has more as many, in order, as are missing from the sum."""
    lacking = samples - fewer.sum(1)
    room = more - fewer
    before = room.cumsum(1) - room
    given = (lacking[:, None] - before).clamp_min(0).minimum(room)
    counts = fewer + given
    off = counts.sum(1) != samples
    if bool(off.any()):  # nothing within reach: the same proportions, at the right sum
        wanted = counts[off].double().clamp_min(1e-9)
        counts[off] = apportioned(wanted * (samples / wanted.sum(1, keepdim=True)), samples)
    return counts
