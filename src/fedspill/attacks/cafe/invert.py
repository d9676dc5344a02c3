"""Step III of CAFE, sample by sample: the image x whose features front(x) are h (paper 001, Eq. 9 with alpha = 0).

Once h is known the samples have nothing to do with each other, and gradients need not be matched. The front is
piecewise linear, so what is hard is which pieces: total variation, strong at first and then let go, leads there. Images
whose features do not fit in the end are blurred again and tried anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedspill.attacks.cafe.decoder import fit_decoder
from fedspill.attacks.cafe.lbfgs import Objective, minimise

_SOLVED = 1e-9  # misfit |front(x) - h|^2 / (2 |h|^2) of an image that is found
_EXACT = 1e-13  # misfit at which float32 ends
_CLEAN = 1e-4  # relative error of h below which it is taken as exact
_KNOWN = 0.05  # the same where there are many features a pixel, over which errors average out
_EASY = 5  # features a pixel from which on no total variation is needed to find the way
_NEAR = 1e-5  # misfit that a wrong piece does not come down to
_SAME = 0.9  # share of a misfit from which on another is the same
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
    chunk: int = 0  # images at a time; 0: 400, on a GPU 4,000


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
    near = start is not None
    if start is None:
        decoder = fit_decoder(front, shape, effort.decoder, rng, h.device)
        start = decoder(h).clamp(0, 1).reshape(-1, *shape)
    problem = _Problem(front, h, (0.5 * error.float().square()).clamp_min(_EXACT), shape)
    chunk = effort.chunk or (4000 if h.is_cuda else 400)
    x, misfit = start.flatten(1).clone(), torch.full_like(problem.enough, torch.inf)
    many = h.shape[1] >= _EASY * x.shape[1]
    easy = (error < (_KNOWN if many else _CLEAN)) & (many or near)
    to_the_end = replace(problem, enough=torch.full_like(problem.enough, _EXACT))
    anneal = effort.anneal[-2:] if near else effort.anneal
    spent = 0
    for chosen, how, schedule in ((easy, to_the_end, ((0.0, effort.plain),)), (~easy, problem, anneal)):
        for rows in torch.split(chosen.nonzero().flatten(), chunk):
            x[rows], misfit[rows], more = _annealed(how, rows, x[rows], schedule)
            spent += more
    left = (misfit > (4 * problem.enough).clamp_min(_SOLVED)).nonzero().flatten()
    for blur in effort.again:
        staying = []
        for rows in torch.split(left, chunk):
            noise = 0.05 * torch.randn(len(rows), x.shape[1], generator=rng).to(x)
            schedule = ((blur, effort.blur), *effort.anneal)
            other, found, more = _annealed(problem, rows, x[rows].clamp(0, 1) + noise, schedule)
            spent += more
            before, better = misfit[rows], found < misfit[rows]
            x[rows[better]], misfit[rows[better]] = other[better], found[better]
            # With many features a pixel, to end where one was is to be there: it is the features that are not right.
            again = (found > _SAME * before) & (found < before / _SAME) & (found < _NEAR) & many
            staying.append(rows[(misfit[rows] > (4 * problem.enough[rows]).clamp_min(_SOLVED)) & ~again])
        left = torch.cat(staying) if staying else left
    return Inverted(x.clamp(0, 1).reshape(-1, *shape), misfit, spent)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The front, the features (n, d1) sought, and the misfits (n,) below which they are not known themselves."""

    front: nn.Module
    h: Tensor
    enough: Tensor  # fitting h better than it is known fits its noise
    shape: tuple[int, ...]


def _annealed(
    problem: _Problem, chosen: Tensor, start: Tensor, schedule: tuple[tuple[float, int], ...]
) -> tuple[Tensor, Tensor, int]:
    """One pass of the `chosen` rows through the schedule; an image leaves it when it fits as well as h is known."""
    h, enough = problem.h[chosen], problem.enough[chosen]
    x = start.clone()
    misfit = torch.full_like(enough, torch.inf)
    spent = 0
    for weight, iterations in schedule:
        rows = (misfit > enough).nonzero().flatten()
        if len(rows) == 0:
            break
        objective = _objective(problem.front, h[rows], problem.shape, weight)
        found = minimise(objective, x[rows], iterations=iterations, tolerance=enough[rows], memory=_MEMORY)
        spent += found.evaluations + len(rows)
        x[rows] = found.x
        with torch.no_grad():
            misfit[rows] = _misfit(problem.front, found.x.reshape(-1, *problem.shape), h[rows])
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
