"""The search: from an observed gradient to inputs, by an objective, priors and an optimizer; nothing here sees a truth.

    found = reconstruct(recipe, gradients, observed, (B, *shape), classes, rng=rng)          # labels sought jointly
    found = reconstruct(recipe, gradients, observed, (B, *shape), classes, rng=rng, targets=one_hot(labels, classes))

The answer is the restart and iterate with the least mismatch, which the adversary can compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.cuda_graphs import replayed
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction
from fedspill.leaks.inputs.search.objectives import GradientDistance
from fedspill.leaks.inputs.search.optimizers import OptimizerState, SearchOptimizer, moved_to
from fedspill.leaks.inputs.search.priors import Prior
from fedspill.leaks.inputs.search.product_convolutions import by_products

UNSEEN = 8  # steps on a GPU between two looks at whether all is explained: each look waits for what was launched

Start: TypeAlias = Literal["normal", "uniform", "zero"]


@dataclass(frozen=True)
class Box:
    """The range of valid inputs; bounds broadcast against a sample."""

    low: Tensor
    high: Tensor

    def clamp(self, x: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(x, self.high.to(x)), self.low.to(x))

    def like(self, tensor: Tensor) -> Box:
        """The same on the device of that tensor, and as precise."""
        return Box(self.low.to(tensor), self.high.to(tensor))


@dataclass(frozen=True)
class Recipe:
    """A published attack is one of these."""

    objective: GradientDistance
    optimizer: SearchOptimizer
    steps: int
    priors: tuple[Prior, ...] = ()
    restarts: int = 1
    start: Start = "normal"
    boxed: bool = False  # inputs are clamped to the box after every move
    enough: float = 1e-9  # loss (priors apart) at which all is explained and the search stops


@dataclass(frozen=True, eq=False)
class SearchState:
    """All that a search depends on, so that it can be resumed as if it had never stopped."""

    optimizer: OptimizerState
    least: Tensor  # (R,) the least objective so far, without priors
    best: Tensor  # (R, n) where that was
    generator_state: Tensor  # of the random numbers

    @property
    def steps(self) -> int:
        return self.optimizer.step


StepWatcher: TypeAlias = Callable[[SearchState], None]  # called after every step: progress bars, files to resume from


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best of every restart, and which of them explains the observation best."""

    x: Tensor  # (R, B, *shape)
    targets: Tensor  # (R, B, classes) probabilities
    loss: Tensor  # (R,) the objective, priors apart
    state: SearchState  # to go on from

    @property
    def steps(self) -> int:
        """Of this search and those that it went on from."""
        return self.state.steps

    @property
    def best(self) -> int:
        return int(torch.where(self.loss.isfinite(), self.loss, torch.inf).argmin())


def reconstruct(
    recipe: Recipe,
    gradients: GradientFunction,
    observed: Sequence[Tensor],
    shape: Sequence[int],
    classes: int,
    *,
    rng: torch.Generator,
    targets: Tensor | None = None,
    box: Box | None = None,
    start: Tensor | None = None,
    state: SearchState | None = None,
    watch: StepWatcher | None = None,
) -> SearchResult:
    """Inputs of `shape` (B, *sample) whose `gradients` come close to `observed`.

    `targets` (B, classes) or (R, B, classes) are probabilities; without them labels are sought jointly, as softmax of
    logits. `start` (R, B, *sample) replaces the random one. With `state` a search is taken up where it stood, and ends
    after as many steps as the recipe has in all.
    """
    like = observed[0]
    count, size = int(shape[0]), int(torch.Size(shape).numel())
    joint = targets is None
    if state is None:
        first = _random_start(recipe, shape, like, rng) if start is None else start.to(like)
        flat = first.flatten(1)
        if joint:
            logits = torch.randn(len(flat), count * classes, generator=rng, dtype=torch.float64).to(like)
            flat = torch.cat([flat, logits], 1)
        unknown = torch.full((len(flat),), torch.inf, dtype=like.dtype, device=like.device)
        state = SearchState(OptimizerState(flat), unknown, flat, rng.get_state())
    optimizer, least, best = state.optimizer, state.least.clone(), state.best.clone()
    rng.set_state(state.generator_state)
    restarts = len(optimizer.points)
    fixed = None if targets is None else targets.to(like).expand(restarts, count, classes)
    box = None if box is None else box.like(like)
    distance = recipe.objective.against(observed)
    looks = UNSEEN if like.is_cuda else 1

    def read(at: Tensor) -> tuple[Tensor, Tensor]:
        x = at[:, :size].reshape(restarts, *shape)
        if fixed is not None:
            return x, fixed
        return x, at[:, size:].reshape(restarts, count, classes).softmax(-1)

    def measure(at: Tensor) -> tuple[Tensor, ...]:
        at = at.detach().requires_grad_()
        with torch.enable_grad():
            x, soft = read(at)
            match = distance(gradients(x, soft))
            loss = match + sum(prior(x) for prior in recipe.priors)
            (slope,) = torch.autograd.grad(loss.sum(), [at])
        sound = slope.isfinite().all(1, keepdim=True)
        return match.detach(), loss.detach(), torch.where(sound, slope, torch.zeros_like(slope))

    measured = replayed((measure, by_products(measure)), optimizer.points) if like.is_cuda else measure

    def evaluate(at: Tensor) -> tuple[Tensor, Tensor]:
        match, loss, slope = measured(at)
        better = match < least
        best.copy_(torch.where(better[:, None], at.detach(), best))
        least.copy_(torch.where(better, match, least))
        return loss, slope

    def state_now() -> SearchState:
        return SearchState(optimizer, least.clone(), best.clone(), rng.get_state())

    while optimizer.step < recipe.steps and (optimizer.step % looks or not bool((least < recipe.enough).any())):
        optimizer, _losses = recipe.optimizer.move(optimizer, evaluate, rng)
        if recipe.boxed and box is not None:
            x, rest = optimizer.points[:, :size].reshape(restarts, *shape), optimizer.points[:, size:]
            optimizer = moved_to(optimizer, torch.cat([box.clamp(x).flatten(1), rest], 1))
        if watch is not None:
            watch(state_now())
    x, soft = read(best)
    return SearchResult(x.clone(), soft.clone(), least, state_now())


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(B, classes) targets of known labels (B,)."""
    return torch.nn.functional.one_hot(labels, classes).to(torch.float64)


def _random_start(recipe: Recipe, shape: Sequence[int], like: Tensor, rng: torch.Generator) -> Tensor:
    wanted = (recipe.restarts, *shape)
    if recipe.start == "uniform":
        drawn = torch.rand(wanted, generator=rng, dtype=torch.float64)
    elif recipe.start == "zero":
        drawn = torch.zeros(wanted, dtype=torch.float64)
    else:
        drawn = torch.randn(wanted, generator=rng, dtype=torch.float64)
    return drawn.to(like)
