"""Step III of CAFE, sample by sample: the image x whose features front(x) are h (paper 001, Eq. 9 with alpha = 0).

Once h is known the samples are independent of each other, and gradients need not be matched. The front is piecewise
linear, so the difficulty is to find the piece that an image lies in; total variation, strong at first and then reduced
to zero, leads there. An image whose features do not fit in the end is blurred and tried again. Parties differ only in
their fronts, so all of their tiles are rows of one problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.total_variation import total_variation
from fedspill.leaks.inputs.vertical.batched_lbfgs import RowMinima, RowObjective, WeightedStage, minimise
from fedspill.leaks.inputs.vertical.feature_decoder import fit_decoder, made_up_images

_SOLVED = 1e-9  # misfit |front(x) - h|^2 / (2 |h|^2) of an image that is found
_EXACT = 1e-13  # misfit at which float32 ends
_CLEAN = 1e-4  # relative error of h below which it is taken as exact
_KNOWN = 0.05  # the same where there are many features a pixel, over which errors average out
_MANY = 5  # features a pixel from which on the search finds the image without total variation
_NEAR = 1e-5  # misfit that is not reached in a wrong linear piece
_SAME = 0.9  # two misfits count as equal if the smaller is more than this share of the larger
_MEMORY = 20
_ROUNDED_BELOW = 0.02  # differences of neighbouring pixels below which total variation is rounded off
_FILLED = 400  # images that keep a GPU busy; for fewer, several tries of each run at once


@dataclass(frozen=True)
class InversionEffort:
    """How hard Step III tries: weights of total variation with iterations each, and how often a misfit is tried anew.

    The weights were chosen on CIFAR-10 and Fashion-MNIST tiles of seeds 11 and 12.
    """

    anneal: tuple[tuple[float, int], ...] = ((1e-2, 40), (3e-3, 40), (1e-3, 40), (1e-4, 30), (0.0, 60))
    retry_blurs: tuple[float, ...] = (
        3e-2,
        1e-1,
        3e-2,
        1e-1,
        3e-1,
    )  # weights of total variation that each new try starts with
    blur: int = 40  # iterations of that
    plain: int = 60  # iterations without any total variation, where that is enough
    decoder: int = 1000  # made-up images for the first guess
    chunk: int = 0  # images at a time; 0: 400, on a GPU 4,000


@dataclass(frozen=True, eq=False)
class PartyFeatures:
    """What is known of one party's samples: the front, their features (n, d1), and the relative errors (n,) of those.

    Images (n, *shape) to start from, where there are some already.
    """

    front: nn.Module
    h: Tensor
    error: Tensor
    start: Tensor | None = None


@dataclass(frozen=True, eq=False)
class InvertedImages:
    """The images (n, *shape) of one party and their misfits (n,)."""

    x: Tensor
    misfit: Tensor


def invert_features(
    parties: Sequence[PartyFeatures], shape: tuple[int, ...], effort: InversionEffort, rng: torch.Generator
) -> tuple[list[InvertedImages], int]:
    """Images of one shape for parties with features of one width, and how often an image was evaluated."""
    features = _Features.of([(party.front, party.h.float()) for party in parties], shape)
    error = torch.cat([party.error for party in parties])
    problem = _Problem(features, (0.5 * error.float().square()).clamp_min(_EXACT))
    near = parties[0].start is not None
    x = torch.cat(_starts(parties, shape, effort, rng)).flatten(1)
    misfit = torch.full_like(problem.enough, torch.inf)
    gpu, many = x.is_cuda, features.h.shape[1] >= _MANY * x.shape[1]
    chunk = effort.chunk or (4000 if gpu else 400)
    easy = (error < (_KNOWN if many else _CLEAN)) & (many or near)
    to_the_end = replace(problem, enough=torch.full_like(problem.enough, _EXACT))
    anneal = effort.anneal[-2:] if near else effort.anneal
    spent = 0
    for chosen, how, schedule in ((easy, to_the_end, ((0.0, effort.plain),)), (~easy, problem, anneal)):
        for rows in torch.split(chosen.nonzero().flatten(), chunk):
            found = how.solved(rows, x[rows], schedule)
            x[rows], misfit[rows], spent = found.x, found.value, spent + found.evaluations
    enough = (4 * problem.enough).clamp_min(_SOLVED)
    left, blurs = (misfit > enough).nonzero().flatten(), effort.retry_blurs
    while blurs and len(left):
        at_once = min(len(blurs), max(1, _FILLED // len(left) if gpu else 1))
        weights, blurs = x.new_tensor(blurs[:at_once]), blurs[at_once:]
        staying = []
        for rows in torch.split(left, chunk):
            tried = rows.repeat_interleave(at_once)
            noise = 0.05 * torch.randn(len(tried), x.shape[1], generator=rng).to(x)
            blurred: WeightedStage = (weights.repeat(len(rows)), effort.blur)
            found = problem.solved(tried, x[tried].clamp(0, 1) + noise, (blurred, *effort.anneal))
            spent += found.evaluations
            best = found.value.reshape(-1, at_once).min(1)
            other = found.x.reshape(len(rows), at_once, -1)[torch.arange(len(rows), device=x.device), best.indices]
            before, better = misfit[rows], best.values < misfit[rows]
            x[rows[better]], misfit[rows[better]] = other[better], best.values[better]
            # With many features a pixel the image is determined by them. A try that ends at the same small misfit has
            # found the same image again, so the misfit comes from errors in the features and more tries cannot help.
            same = (best.values > _SAME * before) & (best.values < before / _SAME) & (best.values < _NEAR) & many
            staying.append(rows[(misfit[rows] > enough[rows]) & ~same])
        left = torch.cat(staying)
    counts = [len(party.h) for party in parties]
    images = x.clamp(0, 1).reshape(-1, *shape)
    return [
        InvertedImages(*both) for both in zip(torch.split(images, counts), torch.split(misfit, counts), strict=True)
    ], spent


def _starts(
    parties: Sequence[PartyFeatures], shape: tuple[int, ...], effort: InversionEffort, rng: torch.Generator
) -> list[Tensor]:
    """Images (n, *shape) of every party: those that it has already, or a first guess."""
    if all(party.start is not None for party in parties):
        return [party.start for party in parties if party.start is not None]
    examples = made_up_images(effort.decoder, shape, rng, parties[0].h.device)
    return [
        fit_decoder(party.front, examples)(party.h.float()).clamp(0, 1).reshape(-1, *shape) for party in parties
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Problem:
    """The features to be fitted, and the misfits (n,) that errors of the features explain."""

    features: _Features
    enough: Tensor  # an image stops here: h is not known more precisely, and a closer fit would fit its noise

    def solved(self, rows: Tensor, start: Tensor, schedule: Sequence[WeightedStage]) -> RowMinima:
        """One pass of those rows through the schedule; an image stops when it fits as well as h is known."""
        smooth = any(isinstance(weight, Tensor) or weight > 0 for weight, _ in schedule)
        objective = replace(self.features.only(rows), smooth=smooth)
        return minimise(objective, start, stages=schedule, tolerance=self.enough[rows], memory=_MEMORY)


@final
@dataclass(frozen=True, eq=False)
class _Features(RowObjective):
    """Misfit of features, what lies outside [0, 1], and, with its weight, total variation."""

    fronts: tuple[nn.Module, ...]
    counts: tuple[int, ...]  # rows of each front, one after the other
    h: Tensor  # (n, d1)
    scale: Tensor  # (n,) 1 / (2 |h|^2)
    shape: tuple[int, ...]
    smooth: bool = True

    @classmethod
    def of(cls, parties: Sequence[tuple[nn.Module, Tensor]], shape: tuple[int, ...]) -> _Features:
        h = torch.cat([features for _, features in parties])
        scale = 0.5 / h.square().sum(1).clamp_min(1e-12)
        return cls(tuple(front for front, _ in parties), tuple(len(one) for _, one in parties), h, scale, shape)

    def only(self, rows: Tensor) -> _Features:
        ends = torch.tensor(self.counts).cumsum(0).to(rows.device)
        counts = torch.bincount(torch.searchsorted(ends, rows, right=True), minlength=len(self.counts))
        return replace(self, counts=tuple(counts.tolist()), h=self.h[rows], scale=self.scale[rows])

    def __call__(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            flat = points.detach().requires_grad_(True)
            x = flat.reshape(-1, *self.shape)
            tiles = torch.split(x, list(self.counts))
            made = [front(tile) for front, tile in zip(self.fronts, tiles, strict=True) if len(tile)]
            value = (torch.cat(made) - self.h).square().sum(1) * self.scale
            value = value + ((-flat).relu().square() + (flat - 1).relu().square()).mean(1)
            if self.smooth:
                value = value + weight * total_variation(x, _ROUNDED_BELOW) / flat.shape[1]
            (gradient,) = torch.autograd.grad(value.sum(), flat)
        return value.detach(), gradient
