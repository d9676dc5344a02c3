"""Clients that are alike are read together: what one leaves open the others say.

Rehearsal reads every client by itself. Where a model knows the samples nearly by heart, little of a client's labels is
left in what it sends, and single estimates scatter widely. If all clients hold about the same mix of classes, their
estimates scatter no more than errors do, and the mean of all is far better than each. Whether that is so is not known;
so it is asked for how likely the estimates are if

    the clients differ    by so much, from nearly nothing to one class each
    the population is     so far from holding all classes alike
    errors of real ones   are so much larger than those of make-believe clients

and every answer counts by its likelihood (empirical Bayes; a normal model in two levels, as Efron and Morris 1975 have
it). Clients that differ as those of the broad draw do are left as they were read: rehearsal has drawn their estimates
in already. So are those with hardly more samples than there are classes, which chance alone makes as unlike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.observe.real_errors import rareness
from fedspill.observe.rehearsed_result import RehearsedShares
from fedspill.observe.share_fits import positive


@dataclass(frozen=True)
class Hypotheses:
    """What may be true of a federation, and how likely that is before anything was read.

    Variances of a share are given over those of a client that holds one class alone, drawn at random: a Dirichlet
    distribution with parameters that sum to a has 1 / (a + 1). Grids are about evenly spaced in the logarithm, by
    convention; the numbers below were chosen on 102 federations (development seeds 801 to 803).
    """

    between: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # clients
    uneven: tuple[float, ...] = (1e-6, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # the population's shares
    noise: tuple[float, ...] = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)  # over the make-believe clients' variance of errors
    doubt_of_noise: float = 0.35  # deviation of its logarithm, around what `rareness` says (development)
    common: float = 0.2  # of the errors' variance is the same for all: they are read by the same samples (development)
    alike: float = 0.001  # probability that clients are alike; errors that hang together look like it (development)
    alike_sum: float = 13.3  # Dirichlet parameters of clients that are alike sum to this at least (development)
    alike_each: float = (
        1.3  # and are so large each: of many classes unlike clients' parameters sum to much (convention)
    )
    unseen: float = 0.65  # of the errors' variance stays stated: what all err by together does not show (development)

    def alike_below(self, classes: int) -> float:
        """Of `between`: what differs less is alike."""
        return 1 / (1 + max(self.alike_sum, self.alike_each * classes))


HYPOTHESES = Hypotheses()


@dataclass(frozen=True, eq=False)
class _Read:
    """Estimates as a measurement plus noise: not drawn in to what was rehearsed."""

    measured: Tensor  # (clients, classes)
    noise: Tensor  # (clients, 1) variance, as make-believe clients have it

    @staticmethod
    def of(results: Sequence[RehearsedShares]) -> _Read:
        # Rounds that contradict each other say something of how large errors are, but most of that averages out.
        noise = [one.doubt * one.own_errors.square().mean() for one in results]
        return _Read(torch.stack([one.measured for one in results]), torch.stack(noise)[:, None].clamp_min(1e-12))


def read_together(results: Sequence[RehearsedShares]) -> list[RehearsedShares]:
    """The results, with shares and errors as the other clients' make them likely.

    Rounds that were read as one have the same estimate, which counts once. Whoever sent nothing like the rehearsals
    says nothing of the others.
    """
    groups: dict[int, list[int]] = {}
    for place, one in enumerate(results):
        if one.near and _may_be_alike(one):
            groups.setdefault(id(one.errors), []).append(place)
    told = list(results)
    if len(groups) < 2:  # nobody to be like
        return told
    distinct = [results[places[0]] for places in groups.values()]
    shares, factors = _posterior(distinct)
    for places, own, factor in zip(groups.values(), shares, factors, strict=True):
        for place in places:
            told[place] = replace(results[place], shares=own, errors=results[place].errors * factor)
    return told


def _may_be_alike(result: RehearsedShares) -> bool:
    """Whether clients that draw so many samples from the same population come out alike."""
    samples, classes = float(result.counts.sum(1).double().mean()), result.counts.shape[1]
    return 1 / (1 + samples) < HYPOTHESES.alike_below(classes)


def _posterior(results: Sequence[RehearsedShares]) -> tuple[Tensor, Tensor]:
    """(clients, classes) shares, and what their errors are to be multiplied by.

    Many hypotheses are averaged, but no table (hypotheses, clients, classes) is held: all sums over the evenness of the
    population are sums of single classes.
    """
    read, shares = _Read.of(results), torch.stack([one.shares for one in results])
    classes = shares.shape[1]
    even, one_class = 1 / classes, (1 - 1 / classes) / classes
    centre = positive(read.measured.mean(0))
    room = 0.5 * centre * (1 - centre) + 0.5 * one_class  # variance of who holds one class alone
    usual = rareness(classes) ** 2
    errors = usual * torch.stack([(one.doubt * one.errors).square().mean(0) for one in results])
    away = read.measured - even
    below = HYPOTHESES.alike_below(classes)
    cases = [(between, noise) for between in HYPOTHESES.between for noise in HYPOTHESES.noise]
    looks = [_Case(between * room, noise * read.noise, one_class, away) for between, noise in cases]
    logs = torch.stack([look.log_likelihoods() for look in looks])  # (cases, evenness)
    prior = torch.tensor([_log_prior(*case, usual, below) for case in cases])
    logs = (1 - even) * logs + prior[:, None]  # shares add up to 1
    weights = (logs - logs.max()).exp()
    weights = weights / weights.sum()
    mean, square = torch.zeros_like(shares), torch.zeros_like(shares)
    for (between, _), look, weight in zip(cases, looks, weights, strict=True):
        if between < below:
            found, found_square = look.moments(weight)
            mean += weight.sum() * even + found
            square += weight.sum() * even**2 + 2 * even * found + found_square
        else:
            mean += weight.sum() * shares
            square += weight.sum() * (shares.square() + errors)
    variance = (square - mean.square()).clamp_min(0)
    return positive(mean), (variance / errors.clamp_min(1e-30)).clamp_min(HYPOTHESES.unseen).sqrt()


def _log_prior(between: float, noise: float, usual: float, below: float) -> float:
    alike = sum(one < below for one in HYPOTHESES.between)
    chance = HYPOTHESES.alike / alike if between < below else (1 - HYPOTHESES.alike) / (len(HYPOTHESES.between) - alike)
    return math.log(chance) - 0.5 * (math.log(noise / usual) / HYPOTHESES.doubt_of_noise) ** 2


class _Case:
    """How far clients differ and how large errors are; the rest follows for each evenness of the population.

    A client's measurement, less even shares, is what the population has + what the client has + an error of all + its
    own error, all normal. The first and third are the same for all clients: their sum is `shared`.
    """

    def __init__(self, between: Tensor, noise: Tensor, one_class: float, away: Tensor) -> None:
        self.between, self.away = between, away
        self.own = (1 - HYPOTHESES.common) * noise + between  # (clients, classes)
        self.population = torch.tensor(HYPOTHESES.uneven, dtype=away.dtype)[:, None] * one_class  # (evenness, 1)
        self.shared = self.population + HYPOTHESES.common * noise.mean()
        self.precision = (1 / self.own).sum(0)  # (classes,)
        self.pull = (away / self.own).sum(0)

    def log_likelihoods(self) -> Tensor:
        """(evenness,) of all measurements, but for a constant."""
        alone = self.own.log().sum() + (self.away.square() / self.own).sum()
        grown = 1 + self.shared * self.precision
        return -0.5 * (alone + (grown.log() - self.shared * self.pull.square() / grown).sum(1))

    def moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(clients, classes) mean and mean square of what a client's shares are less even ones; weight (evenness,)."""
        grown = 1 + self.shared * self.precision
        common, open_ = self.shared * self.pull / grown, self.shared / grown  # (evenness, classes)
        kept, part = self.between / self.own, self.population / self.shared
        by_class = weight @ (part * common), weight @ common
        mean = by_class[0] + kept * (weight.sum() * self.away - by_class[1])
        # (part common + kept (away - common))^2 + (part - kept)^2 open + what population and client leave open
        steady, moving = kept * self.away, (part, common, open_)
        factor_squares = [weight @ (moving[0] ** power * (common.square() + open_)) for power in (0, 1, 2)]
        squares = factor_squares[2] - 2 * kept * factor_squares[1] + kept.square() * factor_squares[0]
        squares = squares + 2 * steady * (by_class[0] - kept * by_class[1]) + weight.sum() * steady.square()
        left = (weight[:, None] * self.population * (1 - part)).sum() + weight.sum() * self.between * (1 - kept)
        return mean, squares + left
