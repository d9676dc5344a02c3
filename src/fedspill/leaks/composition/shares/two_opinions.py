"""Two opinions of a client: rehearsals read a few numbers a class, the whole last layer by its class bases says more.

They are off for different reasons, so together they are nearer than either. How much each counts is seen, not set.
Rehearsals say how far they are off, and that is believed. If errors of the two have nothing to do with each other, the
squared distance between the opinions is the sum of both squared errors; what rehearsals do not account for is the
other's. Errors have something to do with each other, so the other counts for a quarter at most by that. It counts for
more where rehearsals say that they leave nearly everything open, as with a thousand classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.composition.shares.path_shares import direction_shares
from fedspill.observe.local_changes import KnownFederation, LocalChange
from fedspill.observe.path_bases import path_bases

LEAST = 3.0  # times rehearsal's squared error: the other's is not believed to be less (measured: composition.md)


@dataclass(frozen=True, eq=False)
class Opinion:
    """What rehearsals say of a client."""

    shares: Tensor  # (classes,)
    error: float  # squared: how far they say that they are off
    open: float  # the share of what make-believe clients differ by from even shares that they leave open


def whole_layer_shares(changes: Sequence[LocalChange], null: Sequence[Tensor], federation: KnownFederation) -> Tensor:
    """(classes,) of a client who sent these changes, each with classes that were not there: null (classes,) bool.

    Formed from either half of the auxiliary samples, averaged over rounds, and drawn to even shares of what was there.
    """
    rounds = list(zip(changes, null, strict=True))
    first, second = (
        torch.stack([_by_half(one, absent, federation, half) for one, absent in rounds]).mean(0)
        for half in _halves(federation.auxiliary.y)
    )
    return hedged_by_halves(first, second, ~torch.stack(list(null)).all(0))


def _by_half(change: LocalChange, null: Tensor, federation: KnownFederation, half: Tensor) -> Tensor:
    samples = federation.auxiliary.take(half)
    bases = path_bases(
        federation.model, change.before, change.change, federation.head, samples, federation.classes, points=3
    )
    return direction_shares(bases, change.mean_gradient(federation.lr, federation.optimizer), ~null)


def _halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every other sample of each class; the same one twice where a class has no more."""
    of_class = [torch.nonzero(labels == label).flatten() for label in sorted(set(labels.tolist()))]
    first, second = ([rows[start::2] if len(rows) > 1 else rows for rows in of_class] for start in (0, 1))
    return torch.cat(first), torch.cat(second)


def hedged_by_halves(first: Tensor, second: Tensor, present: Tensor) -> Tensor:
    """The mean of shares (classes,) from two halves, drawn to even shares as far as the halves do not agree.

    What both say alike, over what their mean says, is the part of it that is not due to the samples of either.
    """
    even = present.double() / present.sum().clamp_min(1)
    off = (first + second) / 2 - even
    alike = ((first - even) * (second - even)).sum() / off.square().sum().clamp_min(1e-30)
    return even + alike.clamp(0, 1) * off


def weights_of_second(first: Sequence[Opinion], second: Sequence[Tensor]) -> Tensor:
    """(clients,) how much the second opinion (classes,) of each counts beside the first.

    All clients tell together how far the second is off, since the distance of one is much a matter of chance.
    """
    errors, left = (torch.tensor(v, dtype=torch.float64) for v in ([o.error for o in first], [o.open for o in first]))
    apart = torch.stack([(one.shares - other).square().sum() for one, other in zip(first, second, strict=True)])
    theirs = torch.maximum((apart - errors).mean(), LEAST * errors.mean()).clamp_min(1e-30)
    return torch.maximum(errors / (errors + theirs), left.square()).clamp(0, 1)
