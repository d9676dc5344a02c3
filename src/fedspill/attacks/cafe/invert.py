"""Step III of CAFE, sample by sample: the image x whose features front(x) are h (paper 001, Eq. 9 with alpha = 0).

Once h is known the samples have nothing to do with each other, and gradients need not be matched. The front is
piecewise linear, so what is hard is which pieces: total variation, strong at first and then let go, leads there. Images
whose features do not fit in the end are blurred again and tried anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.attacks.cafe.decoder import fit_decoder
from fedspill.attacks.cafe.lbfgs import Objective, minimise

_SOLVED = 1e-9  # misfit |front(x) - h|^2 / (2 |h|^2) of an image that is found
_EXACT = 1e-13  # misfit at which float32 ends
_CLEAN = 1e-4  # relative error of h below which it is taken as exact
_EASY = 5  # features a pixel from which on no total variation is needed to find the way
_MEMORY = 20
_SMOOTHED = 0.02  # total variation is rounded off below this difference


@dataclass(frozen=True)
class Effort:
    """How hard Step III tries: weights of total variation with iterations each, and how often a misfit is tried anew.

    The weights were chosen on CIFAR-10 and Fashion-MNIST tiles of seeds 11 and 12.
    """

    anneal: tuple[tuple[float, int], ...] = ((1e-2, 40), (3e-3, 40), (1e-3, 40), (1e-4, 30), (0.0, 60))
    again: tuple[float, ...] = (3e-2, 1e-1, 3e-2, 1e-1, 3e-1)  # blur each new try starts with
    blur: int = 40  # iterations of that
    plain: int = 60  # iterations without any total variation, where that is enough
    decoder: int = 1000  # made-up images for the first guess
    chunk: int = 400  # images at a time


@dataclass(frozen=True, eq=False)
class Inverted:
    """Images (n, *shape), their misfits (n,) and how often an image was evaluated, all together."""

    x: Tensor
    misfit: Tensor
    evaluations: int


def invert(
    front: nn.Module,
    h: Tensor,
    error: Tensor,
    shape: tuple[int, ...],
    effort: Effort,
    rng: torch.Generator,
    start: Tensor | None = None,
) -> Inverted:
    """Images (n, *shape) for features h (n, d1) with relative errors (n,); `start` (n, *shape) instead of a guess."""
    h = h.float()
    if start is None:
        decoder = fit_decoder(front, shape, effort.decoder, rng, h.device)
        start = decoder(h).clamp(0, 1).reshape(-1, *shape)
    parts = [
        _invert(front, h[rows], error[rows].float(), start[rows].flatten(1), shape, effort, rng)
        for rows in torch.split(torch.arange(len(h), device=h.device), effort.chunk)
    ]
    return Inverted(
        torch.cat([part.x for part in parts]),
        torch.cat([part.misfit for part in parts]),
        sum(part.evaluations for part in parts),
    )


def _invert(
    front: nn.Module,
    h: Tensor,
    error: Tensor,
    start: Tensor,
    shape: tuple[int, ...],
    effort: Effort,
    rng: torch.Generator,
) -> Inverted:
    enough = (0.5 * error.square()).clamp_min(_EXACT)  # fitting h better than it is known fits its noise
    clean = bool((error < _CLEAN).all())
    easy = clean and h.shape[1] >= _EASY * start.shape[1]
    x, misfit, spent = _annealed(front, h, enough, start, shape, ((0.0, effort.plain),) if easy else effort.anneal)
    for blur in effort.again:
        rows = (misfit > (4 * enough).clamp_min(_SOLVED)).nonzero().flatten()
        if len(rows) == 0:
            break
        noise = 0.05 * torch.randn(len(rows), x.shape[1], generator=rng).to(x)
        schedule = ((blur, effort.blur), *effort.anneal)
        other, found, more = _annealed(front, h[rows], enough[rows], x[rows].clamp(0, 1) + noise, shape, schedule)
        spent += more
        better = found < misfit[rows]
        x[rows[better]], misfit[rows[better]] = other[better], found[better]
    return Inverted(x.clamp(0, 1).reshape(-1, *shape), misfit, spent)


def _annealed(
    front: nn.Module,
    h: Tensor,
    enough: Tensor,
    start: Tensor,
    shape: tuple[int, ...],
    schedule: tuple[tuple[float, int], ...],
) -> tuple[Tensor, Tensor, int]:
    """One pass through the schedule; an image leaves it as soon as it fits its features as well as they are known."""
    x = start.clone()
    misfit = torch.full_like(enough, torch.inf)
    spent = 0
    for weight, iterations in schedule:
        rows = (misfit > enough).nonzero().flatten()
        if len(rows) == 0:
            break
        objective = _objective(front, h[rows], shape, weight)
        found = minimise(objective, x[rows], iterations=iterations, tolerance=enough[rows], memory=_MEMORY)
        spent += found.evaluations + len(rows)
        x[rows] = found.x
        misfit[rows] = _misfit(front, found.x.reshape(-1, *shape), h[rows]).detach()
    return x, misfit, spent


def _misfit(front: nn.Module, x: Tensor, h: Tensor) -> Tensor:
    misfit: Tensor = 0.5 * (front(x) - h).square().sum(1) / h.square().sum(1).clamp_min(1e-12)
    return misfit


def _objective(front: nn.Module, h: Tensor, shape: tuple[int, ...], weight: float) -> Objective:
    """Misfit, what lies outside [0, 1], and total variation: values (b,) and gradients (b, p) at points (b, p)."""

    def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            flat = points.detach().requires_grad_(True)
            x = flat.reshape(-1, *shape)
            value = _misfit(front, x, h[rows])
            value = value + ((-flat).relu().square() + (flat - 1).relu().square()).mean(1)
            if weight:
                value = value + weight * _variation(x) / flat.shape[1]
            (gradient,) = torch.autograd.grad(value.sum(), flat)
        return value.detach(), gradient

    return evaluate


def _variation(x: Tensor) -> Tensor:
    """Total variation of images (b, c, h, w), without its kink at zero: (b,)."""
    down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
    return sum((part.square() + _SMOOTHED**2).sqrt().flatten(1).sum(1) for part in (down, right))  # type: ignore[return-value]
