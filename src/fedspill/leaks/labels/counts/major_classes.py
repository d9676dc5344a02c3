"""How the major classes of a drifting, untrained model share the samples that the lattice leaves to them.

Over the local steps a class receives beta = sum_t [p_t - q_t], with q_t its share of step t's labels, so that its count
follows from the sum of its probability on the way. How much probability all major classes drew together is known: the
lattice has the counts of the others. What is not known is how it was shared, and two readings of the way answer:

    push     as the counts themselves: amounts are proportional to -beta
    field    logits follow the mean labels at a rate that makes up the known total; amounts and way in turns

A slow drift is read by the field. A faster one is oscillation that no single reading describes: the mean of push and
field as far as these agree, the push alone where they do not or where the model after has settled on one class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedspill.leaks.labels.counts.constants import COUNTS

_TINY = 1e-12


def shared(
    bias: Tensor, major: Tensor, left: Tensor, start: Tensor, end: Tensor, time: Tensor, samples: int, steps: int
) -> Tensor:
    """Amounts (origins, classes) of the major classes, which sum to `left`.

    bias (origins, classes) summed over the steps of one pass; major (origins, classes) bool; left (origins, 1); start
    and end (origins, classes) mean probabilities before and after; time (origins,) the lattice's T.
    """
    push = by_push(bias, major, left)
    field = by_field(bias, major, left, start, samples, steps, push)
    apart = (push - field).abs().sum(1, keepdim=True) / (2 * left.clamp_min(1))
    agreed = (-(apart / COUNTS.agreement).square()).exp() * (end.amax(1, keepdim=True) < COUNTS.settled)
    mixed = agreed * (push + field) / 2 + (1 - agreed) * push
    calm = calmness(time, steps)
    return calm * field + (1 - calm) * mixed


def calmness(time: Tensor, steps: int) -> Tensor:
    """(origins, 1) 1 where the lattice's T says that the drift is slow, 0 where it is fast."""
    return ((time / steps - COUNTS.fast) / (COUNTS.calm - COUNTS.fast)).clamp(0, 1)[:, None]


def by_push(bias: Tensor, major: Tensor, left: Tensor) -> Tensor:
    return _summing((-bias).clamp_min(0), major, left)


def by_field(
    bias: Tensor, major: Tensor, left: Tensor, start: Tensor, samples: int, steps: int, first: Tensor
) -> Tensor:
    """`first` (origins, classes): amounts to begin with."""
    points = min(steps, COUNTS.way_points)
    others = (samples - left) / (~major).sum(1, keepdim=True).clamp_min(1)
    total = _total(bias, major, left, samples, steps)
    amounts = first
    for _ in range(COUNTS.turns):
        labels = torch.where(major, amounts, others) / samples

        def drawn(rate: Tensor, labels: Tensor = labels) -> Tensor:
            logits, found = start.clamp_min(_TINY).log(), torch.zeros_like(start)
            for _ in range(points):
                likely = logits.softmax(1)
                found = found + likely
                logits = logits + rate.exp()[:, None] * (labels - likely)
            return found * (steps / points) * major

        rate = _solved(drawn, total, -6.0, 5.0)
        amounts = 0.5 * (amounts + _amounts(drawn(rate), total, bias, major, left, samples, steps))
    return amounts


def _total(bias: Tensor, major: Tensor, left: Tensor, samples: int, steps: int) -> Tensor:
    """(origins, 1) the probability that the major classes drew over all steps."""
    return (left * (steps / samples) + (bias * major).sum(1, keepdim=True)).clamp_min(0)


def _solved(drawn: Callable[[Tensor], Tensor], total: Tensor, low: float, high: float) -> Tensor:
    """(origins,) where `drawn`, which grows, sums to `total` (origins, 1): by halving."""
    lower = torch.full((len(total),), low, dtype=torch.float64)
    upper = torch.full((len(total),), high, dtype=torch.float64)
    for _ in range(COUNTS.halvings):
        middle = (lower + upper) / 2
        less = drawn(middle).sum(1) < total.squeeze(1)
        lower, upper = torch.where(less, middle, lower), torch.where(less, upper, middle)
    return (lower + upper) / 2


def _amounts(
    drawn: Tensor, total: Tensor, bias: Tensor, major: Tensor, left: Tensor, samples: int, steps: int
) -> Tensor:
    """Counts from the probability that each class drew, its sum put right."""
    share = drawn / drawn.sum(1, keepdim=True).clamp_min(_TINY)
    return _summing((samples / steps) * (share * total - bias), major, left)


def _summing(amounts: Tensor, major: Tensor, left: Tensor) -> Tensor:
    """The same proportions among the major classes, with sum `left` (origins, 1)."""
    kept = (amounts.clamp_min(0) + 1e-9) * major
    return left * kept / kept.sum(1, keepdim=True).clamp_min(_TINY)
