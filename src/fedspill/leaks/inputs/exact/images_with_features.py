"""Images that layers turn into given features: a search for each image by itself, all of them at once.

Every image has a step length and a history of its own. A search that has ended, or that gets nowhere, is left out of
the next moves, so that features which no image has do not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.search.optimizers import Lbfgs, OptimizerState

MOVES = 400
ENOUGH = 1e-13  # share of the squared features that an image may miss
ON = 0.1  # share of the features' usual size from which on a rectifier was on, whatever errors they have
MOVED = 0.3  # the start of a second search: the first one's image with that much noise, relative
PATIENCE = 25  # moves in which a search has to win at least half of what it still misses
BY_LBFGS = Lbfgs(history=30, line_search=True)

# (images (k, *shape), which of all they are (k,)) to features (k, f)
Layers: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def image_of(layers: Layers, features: Tensor, start: Tensor, moves: int = MOVES) -> Tensor:
    """(k, *shape) the images with these features (k, f) that searches from `start` (k, *shape) end at."""
    shape, best = start.shape[1:], start.flatten(1).clone()
    least = features.new_full((len(features),), torch.inf)
    sizes = features.square().sum(1).clamp_min(1e-30)
    active, state = torch.arange(len(features)), OptimizerState(best.clone())
    rng = torch.Generator()  # these moves draw nothing

    def evaluate(at: Tensor) -> tuple[Tensor, Tensor]:
        at = at.detach().requires_grad_()
        with torch.enable_grad():
            made = layers(at.reshape(-1, *shape), active).flatten(1)
            loss = (made - features[active]).square().sum(1) / sizes[active]
            (slope,) = torch.autograd.grad(loss.sum(), [at])
        slope = torch.where(slope.isfinite().all(1, keepdim=True), slope, torch.zeros_like(slope))
        better = loss.detach() < least[active]
        best[active[better]], least[active[better]] = at.detach()[better], loss.detach()[better]
        return loss.detach(), slope

    before = least.clone()
    for move in range(moves):
        if not len(active):
            break
        state, _ = BY_LBFGS.move(state, evaluate, rng)
        going = least[active] > ENOUGH
        if move % PATIENCE == PATIENCE - 1:
            going &= least[active] < before[active] / 2
            before = least.clone()
        if not bool(going.all()):
            active = active[going]
            losses, slope, *pasts = state.tensors
            tensors = (losses[going], slope[going], *(past[:, going] for past in pasts))
            state = OptimizerState(state.points[going], state.step, tensors)
    return best.reshape(-1, *shape)


def image_from_nothing(below: nn.Module, features: Tensor, shape: tuple[int, ...], moves: int = MOVES) -> Tensor:
    """(k, *shape) the images with these features (k, f), by searches from grey ones.

    Where a last rectifier put something out, what it was fed is known as well, and is compared first: a rectifier that
    is off for the start has no slope that would lead to an image for which it is on.
    """
    start = features.new_zeros(len(features), *shape)
    inner = _without_last_rectifier(below)
    if inner is not None:
        on = features > ON * features.square().mean(1, keepdim=True).sqrt()

        def fed(x: Tensor, of: Tensor) -> Tensor:
            made = inner(x).flatten(1)
            return torch.where(on[of], made, made.relu())

        start = image_of(fed, features, start, moves)
    return image_of(_as_layers(below), features, start, moves)


def images_of(
    below: nn.Module, features: Tensor, shape: tuple[int, ...], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(k, *shape) the images with these features (k, f), and (k,) how unlike two searches' answers are, relative."""
    grey = image_from_nothing(below, features, shape)
    return grey, _unlike(below, features, grey, rng)


def unlike_when_moved(below: nn.Module, x: Tensor, rng: torch.Generator) -> Tensor:
    """(k,) how unlike each image (k, *shape) another one with its features is, that a search from nearby ends at."""
    with torch.no_grad():
        features = torch.as_tensor(below(x)).flatten(1)
    return _unlike(below, features, x, rng)


def image_near(below: nn.Module, features: Tensor, start: Tensor, moves: int = MOVES) -> Tensor:
    """(k, *shape) the images with these features (k, f), by searches from `start` (k, *shape)."""
    return image_of(_as_layers(below), features, start, moves)


def _as_layers(below: nn.Module) -> Layers:
    return lambda x, of: torch.as_tensor(below(x))


def _without_last_rectifier(below: nn.Module) -> nn.Module | None:
    """The layers up to a rectifier at their end, None if there is none; what only reshapes may follow it."""
    parts = list(below.children())
    while parts and isinstance(parts[-1], nn.Flatten | nn.Identity | nn.Dropout):
        parts.pop()
    return nn.Sequential(*parts[:-1]) if parts and isinstance(parts[-1], nn.ReLU) else None


def _unlike(below: nn.Module, features: Tensor, x: Tensor, rng: torch.Generator) -> Tensor:
    # What the layers do not see is not moved back, however little it was moved.
    drawn = torch.randn(x.shape, generator=rng, dtype=torch.float64)
    other = image_near(below, features, x + MOVED * x.square().mean().sqrt() * drawn)
    apart = (x - other).flatten(1).square().mean(1).sqrt()
    return apart / x.flatten(1).square().mean(1).sqrt().clamp_min(1e-12)
