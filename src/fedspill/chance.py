"""Chance: what a guesser gets who does not see this federation's outcome.

The best of several guesses, chosen on the very outcome that it is scored on, would be hindsight, and with few messages
hides a certain leak.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.intervals import RESOLUTION, cluster_means


def others_mean(rows: Tensor, clusters: Tensor) -> Tensor:
    """(n, d) for every row the mean over the rows of all other clusters, for rows (n, d) and clusters (n,).

    What a guesser knows who saw everybody else's outcome and not this client's. The others' mean over all columns
    counts as one cluster more: with few clusters, leaving one out makes the others look unlike it, and chance would
    come out below that of a blind guess.
    """
    _, place = torch.unique(clusters, return_inverse=True)
    m = int(place.max()) + 1
    sums = torch.zeros(m, rows.shape[1], dtype=torch.float64).index_add_(0, place, rows.double())
    means = sums / torch.bincount(place, minlength=m).double()[:, None]
    others = means.sum(0, keepdim=True) - means
    blind = (others / (m - 1) if m > 1 else means).mean(1, keepdim=True)  # a client alone has no others: all alike
    left_out: Tensor = (others + blind) / m
    return left_out[place]


def even_overlap(real: Tensor) -> Tensor:
    """(n,) the share of labels that an even guess has right, for real counts (n, classes).

    A batch that does not divide evenly leaves some classes one more; which ones is averaged over, so that chance does
    not depend on the order of classes. For a batch of one label it is 1 / classes.
    """
    counts, classes = real.double(), real.shape[1]
    size = counts.sum(1, keepdim=True)
    base, rest = (size / classes).floor(), size % classes
    expected = torch.minimum(base, counts) * (1 - rest / classes) + torch.minimum(base + 1, counts) * rest / classes
    return expected.sum(1) / size[:, 0].clamp_min(1)


def label_chance(real: Tensor, clusters: Tensor, prior: Tensor | None = None) -> Tensor:
    """(n,) the share of labels that the best guess without this client's outcome has right; real counts (n, classes).

    Guesses: even counts; the commonest class; the expected composition, scaled to the batch. What is common is what
    `prior` (classes,) says, the class shares of the population, where they are known; then nothing of this federation
    is looked at. Else it is what the other clusters hold: other clients, or, with federations as clusters, other
    federations. Which guess is best is decided by the other clusters too.
    """

    def tried(counts: Tensor, of: Tensor) -> Tensor:
        shares = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
        expected = others_mean(shares, of) if prior is None else _known(prior, shares)
        # Of classes that are equally common one is taken at random: the mean over them.
        top = (expected >= expected.amax(1, keepdim=True) - 1e-12).double()
        majority = (shares * top).sum(1) / top.sum(1)
        return torch.stack([even_overlap(counts), majority, torch.minimum(expected, shares).sum(1)])

    return chance_without_hindsight(tried, real, clusters)


def l1(one: Tensor, other: Tensor) -> Tensor:
    """(n,) the sum of absolute differences of rows (n, classes)."""
    return (one - other).abs().sum(1)


def composition_chance(
    real: Tensor,
    clusters: Tensor,
    prior: Tensor | None = None,
    distance: Callable[[Tensor, Tensor], Tensor] = l1,
) -> Tensor:
    """(n,) the distance of the best guess without this client's outcome, for real shares (n, classes).

    Guesses: even shares, and the expected ones; `prior` and clusters as in `label_chance`.
    """

    def tried(shares: Tensor, of: Tensor) -> Tensor:
        expected = others_mean(shares, of) if prior is None else _known(prior, shares)
        guesses = (torch.full_like(shares, 1 / shares.shape[1]), expected)
        return torch.stack([distance(guess, shares) for guess in guesses])

    return chance_without_hindsight(tried, real.double(), clusters, higher=False)


def _known(prior: Tensor, shares: Tensor) -> Tensor:
    return (prior.double() / prior.double().sum()).expand_as(shares)


def quantity_chance(real: Tensor, clusters: Tensor, bound: Tensor) -> Tensor:
    """(n,) the share of labels whose number of owners the best guess without this round has within bound (n, 1).

    For real numbers of owners (n, classes). Guesses: the others' mean over all labels, the same rounded, and the mean
    of each label.
    """

    def tried(rows: Tensor, of: Tensor) -> Tensor:
        within, owners = rows[:, :1], rows[:, 1:]
        errors = ((guess - owners).abs() for guess in _owner_guesses(owners, of))
        return torch.stack([(error <= within + RESOLUTION).double().mean(1) for error in errors])

    return chance_without_hindsight(tried, torch.cat([bound.double(), real.double()], 1), clusters)


def error_chance(real: Tensor, clusters: Tensor) -> Tensor:
    """(n,) the mean error of the number of owners by the best of the same guesses."""

    def tried(owners: Tensor, of: Tensor) -> Tensor:
        return torch.stack([(guess - owners).abs().mean(1) for guess in _owner_guesses(owners, of)])

    return chance_without_hindsight(tried, real.double(), clusters, higher=False)


def _owner_guesses(owners: Tensor, of: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_label = others_mean(owners, of)
    even = by_label.mean(1, keepdim=True).expand_as(by_label)
    return even, even.round(), by_label


def chance_without_hindsight(
    tried: Callable[[Tensor, Tensor], Tensor], real: Tensor, clusters: Tensor, *, higher: bool = True
) -> Tensor:
    """(n,) what the best of several guesses gets, chosen for each cluster as if that cluster did not exist.

    `tried(real, clusters)` scores every guess: (guesses, n) for real (n, ...). The best of several on the very outcome
    that it is scored on would be hindsight, and with few messages hides a leak: the commonest of six single labels is
    right for a third of them by mere choice. So the choice, too, is made on the others, among themselves. Guesses that
    are equally good there are averaged.
    """
    scores, chance = tried(real, clusters), torch.empty(len(real), dtype=torch.float64)
    for cluster in torch.unique(clusters):
        own = clusters == cluster
        if bool(own.all()):
            means = torch.zeros(len(scores), dtype=torch.float64)  # nobody else to choose by
        else:
            others = tried(real[~own], clusters[~own])
            means = torch.stack([cluster_means(row, clusters[~own])[0].mean() for row in others])
        best = means.max() if higher else means.min()
        chance[own] = scores[(means - best).abs() <= 1e-9][:, own].mean(0)
    return chance
