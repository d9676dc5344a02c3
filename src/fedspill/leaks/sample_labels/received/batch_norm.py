"""Gradients behind a head that begins with a batch norm: what the norm takes out of them, put back.

A norm over the samples of a batch takes out of each column of the gradients their mean, and what goes with the column
of normalised embeddings. The party knows its own embeddings, so that two numbers of each column and batch are missing:

    gradient * deviation = d - a - b * normalised embedding

Where a ReLU follows, the samples below its kink have d = 0 and lie on that line exactly: it is read off. Where linear
layers follow, the columns of d depend on each other (they have C - 1 dimensions), which tells b; the mean stays
unknown. Norms that lie deeper in the head take out what goes with numbers that the party does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.sample_labels.received.gradients import ReceivedGradients
from fedspill.trace import View

EPSILON = 1e-5  # that a norm adds to variances, in PyTorch and elsewhere
EXACT = 1e-3  # of what sums of as many numbers of any sign would be: what float32 leaves of a sum that is zero
ON_LINE = 2e-5  # of a column's largest number, for the same reason
BEYOND = 2  # points of a line more than the two that it takes
FILLS = 30  # rounds of filling in; measured: 300 change nothing in the fourth place


@dataclass(frozen=True, eq=False)
class NormedBatches:
    """Whether a norm over batches is between the party and the loss, and the gradients with that undone."""

    received: ReceivedGradients
    words: str  # what was done, for the notes; empty: there is no norm


def without_norm(view: View, received: ReceivedGradients) -> NormedBatches:
    """The norm is seen by what it does: the gradients of every batch add up to zero, as no other head makes them."""
    batches = _batches(received)
    if _share(batches, [torch.ones_like(received.visits[batch]) for batch in batches], received) > EXACT:
        return NormedBatches(received, "")
    own = _own_embeddings(view, received, batches)
    if own is None:
        return NormedBatches(received, "a batch norm was seen")
    normed = [(rows - rows.mean(0)) / _deviation(rows) for rows in own]
    if _share(batches, [rows - rows.mean(0) for rows in own], received) > 10 * EXACT:
        return NormedBatches(received, "a batch norm was seen deep in the head")
    visits = received.visits.clone()
    lines = []
    for batch, rows, place in zip(batches, own, normed, strict=True):
        scaled = visits[batch] * _deviation(rows)
        line, there = kinked_lines(place, scaled)
        lines.append(there)
        visits[batch] = scaled - line
    if bool(torch.stack(lines).double().mean() < 0.5):  # no ReLU follows
        for visit in range(len(visits)):
            _fill(visits, batches, normed, visit, received.classes - 1)
    return NormedBatches(replace(received, visits=visits), "with a batch norm undone")


def kinked_lines(normed: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The line that the samples at one end of each column lie on, as values (n, w), zero where there is none, and which
    columns (w,) have one; normed and gradients are (n, w)."""
    best = torch.zeros(normed.shape[1], dtype=torch.int64)
    line = torch.zeros_like(gradients)
    for descending in (False, True):
        x, order = normed.sort(0, descending=descending)
        y = gradients.gather(0, order)
        apart = (x - x[0]).abs() > EXACT
        second = apart.double().argmax(0)  # the first that is no tie
        step = x.gather(0, second[None])[0] - x[0]
        slope = (y.gather(0, second[None])[0] - y[0]) / torch.where(apart.any(0), step, 1.0)
        stretch = 1 + (x - x[0]).abs() / step.abs().clamp_min(1e-12)  # two points tell a line that far away less well
        on = (y - y[0] - slope * (x - x[0])).abs() <= ON_LINE * stretch * y.abs().amax(0)
        run = on.long().cumprod(0).sum(0)
        sound = apart.any(0) & (run > second + BEYOND) & (run > best)
        best = torch.where(sound, run, best)
        line = torch.where(sound, y[0] + slope * (normed - x[0]), line)
    return line, best > 0


def balanced(scores: Tensor, prior: Tensor | None) -> Tensor:
    """Scores (samples, classes) moved so that each class is said as often as it is common.

    The norm took the mean of the gradients, and with it where one class ends and the other begins.
    """
    if prior is None or prior.shape != (scores.shape[1],):
        return scores
    moved = scores.clone()
    for _ in range(1 if scores.shape[1] == 2 else 10):
        for label in range(1 if scores.shape[1] == 2 else scores.shape[1]):
            others = moved.clone()
            others[:, label] = -torch.inf
            lead = others.amax(1) - moved[:, label]
            moved[:, label] += torch.quantile(lead, float(prior[label].clamp(0, 1)))
    return moved


def _batches(received: ReceivedGradients) -> list[tuple[Tensor, Tensor]]:
    """The visits and samples that each round is of."""
    visit, sample = received.seen.nonzero(as_tuple=True)
    rounds = received.when[visit, sample]
    order = rounds.argsort(stable=True)
    sizes = torch.unique_consecutive(rounds[order], return_counts=True)[1].tolist()
    return list(zip(torch.split(visit[order], sizes), torch.split(sample[order], sizes), strict=True))


def _share(batches: list[tuple[Tensor, Tensor]], by: list[Tensor], received: ReceivedGradients) -> float:
    """What is left of the sums over batches of gradients times numbers, against sums without signs."""
    left = whole = 0.0
    for batch, factor in zip(batches, by, strict=True):
        products = received.visits[batch] * factor
        left += float(products.sum(0).abs().sum())
        whole += float(products.abs().sum())
    return left / whole if whole else 1.0


def _deviation(rows: Tensor) -> Tensor:
    return (rows.var(0, unbiased=False) + EPSILON).sqrt()


def _own_embeddings(
    view: View, received: ReceivedGradients, batches: list[tuple[Tensor, Tensor]]
) -> list[Tensor] | None:
    """Of each round the embeddings (n, w) that the party sent, in the order of `batches`; None where one is missing."""
    if not view.sees("embedding"):
        return None
    sent = {m.round: m.tensors.get("output") for m in view.get("embedding") if m.sender == view.me}
    asked = {m.round: m.tensors.get("indices") for m in view.get("batch")}
    found = []
    for visit, sample in batches:
        number = int(received.when[visit[0], sample[0]])
        rows, indices = sent.get(number), asked.get(number)
        shape = (len(sample), received.visits.shape[2])
        if rows is None or indices is None or rows.shape != shape or not bool(torch.isfinite(rows).all()):
            return None
        own = received.rounds.indices[sample]
        place = indices.argsort()
        found.append(rows.double()[place[torch.searchsorted(indices[place], own)]])
    return found


def _fill(
    visits: Tensor, batches: list[tuple[Tensor, Tensor]], normed: list[Tensor], visit: int, dimensions: int
) -> None:
    """Puts back, in one visit, what goes with embeddings, so that as few directions as `dimensions` hold the rows."""
    rows = visits[visit]
    if dimensions >= rows.shape[1]:
        return
    inside = [(batch[1], x) for batch, x in zip(batches, normed, strict=True) if bool((batch[0] == visit).all())]
    if not inside:
        return
    given = rows.clone()
    for _ in range(FILLS):
        _, vectors = torch.linalg.eigh(rows.T @ rows)
        main = vectors[:, -dimensions:]
        low = rows @ main @ main.T
        for samples, x in inside:
            along = (x * low[samples]).sum(0) / x.square().sum(0).clamp_min(1e-9)
            rows[samples] = given[samples] + x * along
