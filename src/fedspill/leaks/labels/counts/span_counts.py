"""Label counts from spans: the adversary rehearses batches of its own samples and learns what each count looks like.

Every rehearsed batch, of even, skewed or favoured labels, gives the mean distance of the other auxiliary samples of
each class from what it spans (observe/row_spaces.py). A regression over all classes together reads log(count + 2) off
these distances; how well it does on rehearsals that it was not fitted on is the likelihood that the labels' posterior
gets beside that of the last bias. An update unlike all rehearsals (drift, another optimizer, samples that repeat, a
class larger than the auxiliary data can stand for) is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.span_rehearsal import SpanRehearsals


@dataclass(frozen=True, eq=False)
class SpanCounts:
    """What the spans of several origins say about each class's count.

    Of rehearsals an estimate is offset + slope * log(count + 2), give or take `spread`.
    """

    estimates: Tensor  # (origins, classes) of log(count + 2), as the regression reads it
    usable: Tensor  # (origins,) bool
    offset: Tensor  # (origins,)
    slope: Tensor  # (origins,)
    spread: Tensor  # (origins,)

    def table(self, counts: Tensor) -> Tensor:
        """Log-likelihood (origins, classes, points) of counts of that shape."""
        offset, slope, spread = (one[:, None, None] for one in (self.offset, self.slope, self.spread))
        return -0.5 * ((self.estimates[..., None] - offset - slope * _scale(counts)) / spread).square()

    def rows(self, rows: Tensor) -> SpanCounts:
        return SpanCounts(*(getattr(self, field.name)[rows] for field in fields(self)))

    @staticmethod
    def none(origins: int, classes: int) -> SpanCounts:
        """Where nothing can be read."""
        zeros = torch.zeros(origins, dtype=torch.float64)
        return SpanCounts(zeros[:, None].expand(-1, classes), zeros.bool(), zeros, zeros + 1, zeros + 1)

    @staticmethod
    def joined(parts: Sequence[SpanCounts]) -> SpanCounts:
        return SpanCounts(*(torch.cat([getattr(one, field.name) for one in parts]) for field in fields(SpanCounts)))


def span_counts(rehearsed: SpanRehearsals, looks: Tensor) -> SpanCounts:
    """looks (origins, features, classes) of what was observed."""
    known = _scale(rehearsed.counts)
    estimates = _Regression.fitted(rehearsed.looks, known)(looks)
    blind = _held_out(rehearsed.looks, known)  # (rehearsals, classes), each by a fit without it
    learnt = 1 - float((blind - known).square().mean() / known.var())
    behaviour = (torch.full((len(looks),), value, dtype=torch.float64) for value in _behaviour(blind, known))
    return SpanCounts(estimates, _alike(rehearsed.looks, looks) & (learnt > COUNTS.span_least_r2), *behaviour)


@dataclass(frozen=True, eq=False)
class _Regression:
    """For all classes: of a class's distances, against the mean over classes, and squares of these."""

    middle: Tensor  # (features, classes)
    width: Tensor  # (features, classes)
    weights: Tensor
    constant: float

    @staticmethod
    def fitted(looks: Tensor, known: Tensor) -> _Regression:
        start = _Regression(looks.mean(0), looks.std(0) + 1e-9, torch.zeros(0), float(known.mean()))
        terms = start._terms(looks).flatten(0, 1)
        gram = terms.T @ terms + COUNTS.span_ridge * torch.eye(terms.shape[1], dtype=terms.dtype)
        return replace(start, weights=torch.linalg.solve(gram, terms.T @ (known - start.constant).flatten()))

    def _terms(self, looks: Tensor) -> Tensor:
        """(batches, classes, terms)"""
        standard = (looks - self.middle) / self.width
        mean = standard.mean(2, keepdim=True).expand_as(standard)
        own = standard - mean
        return torch.cat([own, mean, own.square(), own * mean], 1).transpose(1, 2)

    def __call__(self, looks: Tensor) -> Tensor:
        return self._terms(looks) @ self.weights + self.constant


def _held_out(looks: Tensor, known: Tensor) -> Tensor:
    fold = torch.arange(len(looks)) % COUNTS.span_folds
    blind = torch.empty_like(known)
    for index in range(COUNTS.span_folds):
        blind[fold == index] = _Regression.fitted(looks[fold != index], known[fold != index])(looks[fold == index])
    return blind


def _behaviour(blind: Tensor, known: Tensor) -> tuple[float, float, float]:
    """Offset, slope and spread of blind estimates as a function of what they estimate."""
    centred = known - known.mean()
    slope = float((centred * blind).mean() / centred.square().mean())
    offset = float(blind.mean() - slope * known.mean())
    return offset, slope, float((blind - offset - slope * known).std())


def _alike(rehearsed: Tensor, looks: Tensor) -> Tensor:
    """(origins,) whether the features, averaged over classes, lie within what rehearsals had."""
    seen = rehearsed.mean(2)
    off = (looks.mean(2) - seen.mean(0)) / (seen.std(0) + 1e-9)
    return off.abs().amax(1) < COUNTS.span_unlike


def _scale(counts: Tensor) -> Tensor:
    """On which errors are about the same for small and large counts."""
    return (counts + 2).log()
