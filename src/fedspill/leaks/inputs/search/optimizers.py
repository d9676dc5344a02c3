"""How a search moves: Adam with or without signs, and L-BFGS, each for all restarts at once and each resumable.

A search point is a table (R, n): one row for each restart. `OptimizerState` is all that the next move depends on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from fedspill.leaks.inputs.lbfgs_rules import SUFFICIENT_DECREASE, has_curvature

# (R, n) to losses (R,) and their gradients (R, n)
Evaluate: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """Where a search stands: tensors only, so that it can be written down and taken up again."""

    points: Tensor  # (R, n)
    step: int = 0
    tensors: tuple[Tensor, ...] = ()  # the optimizer's own: moments, or past steps and gradient changes


class SearchOptimizer(ABC):
    """One way to move."""

    @abstractmethod
    def move(self, state: OptimizerState, evaluate: Evaluate, rng: torch.Generator) -> tuple[OptimizerState, Tensor]:
        """One step from `memory`: where it leads, and the losses (R,) at the point it started from."""


@final
@dataclass(frozen=True)
class Adam(SearchOptimizer):
    """Adam; `signed` moves by the sign of the gradient, as Inverting Gradients.

    Schedules over `steps`: "steps" divides by ten after 3/8, 5/8 and 7/8, as Inverting Gradients; "cosine" after
    `warmup` steps that rise linearly, as GradInversion; "decay" takes half a percent off every ten steps, as Data
    Leakage in Federated Averaging. `langevin` adds that share of noise to every move.
    """

    lr: float = 0.1
    steps: int = 1
    signed: bool = False
    schedule: Literal["constant", "steps", "cosine", "decay"] = "constant"
    warmup: int = 0
    langevin: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def move(self, state: OptimizerState, evaluate: Evaluate, rng: torch.Generator) -> tuple[OptimizerState, Tensor]:
        losses, slope = evaluate(state.points)
        first, second = state.tensors or (torch.zeros_like(slope), torch.zeros_like(slope))
        slope = slope.sign() if self.signed else slope
        number = state.step + 1
        first = self.betas[0] * first + (1 - self.betas[0]) * slope
        second = self.betas[1] * second + (1 - self.betas[1]) * slope.square()
        move = (first / (1 - self.betas[0] ** number)) / ((second / (1 - self.betas[1] ** number)).sqrt() + 1e-8)
        rate = self.rate(state.step)
        at = state.points - rate * move
        if self.langevin:
            noise = torch.randn(at.shape, generator=rng, dtype=at.dtype).to(at.device)
            at = at + rate * self.langevin * noise
        return OptimizerState(at, number, (first, second)), losses

    def rate(self, step: int) -> float:
        if self.schedule == "steps":
            return self.lr * 0.1 ** sum(step >= share * self.steps for share in (3 / 8, 5 / 8, 7 / 8))
        if self.schedule == "decay":
            return self.lr * float(0.995 ** (step / 10))
        if self.schedule == "cosine":
            if step < self.warmup:
                return self.lr * (step + 1) / self.warmup
            done = (step - self.warmup) / max(1, self.steps - self.warmup)
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.lr


@final
@dataclass(frozen=True)
class Lbfgs(SearchOptimizer):
    """L-BFGS with a history for each restart. Without a line search its steps are those of DLG's optimizer.

    `line_search` halves a restart's step until its loss falls enough; a restart that cannot fall stays where it is.
    """

    lr: float = 1.0
    history: int = 100
    line_search: bool = False

    def move(self, state: OptimizerState, evaluate: Evaluate, rng: torch.Generator) -> tuple[OptimizerState, Tensor]:
        if state.tensors:
            losses, slope, moves, changes = state.tensors
        else:
            losses, slope = evaluate(state.points)
            moves = changes = slope.new_zeros(0, *slope.shape)
        direction = _direction(slope, moves, changes)
        downhill = (direction * slope).sum(1, keepdim=True)
        direction = torch.where(downhill < 0, direction, -slope)
        length = self.lr * torch.ones_like(slope[:, :1])
        if not len(moves):
            length = self.lr * (1 / slope.abs().sum(1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0)
        at = state.points + length * direction
        after, new_slope = evaluate(at)
        if self.line_search:
            tried = (at, after, new_slope)
            at, after, new_slope = _backtrack(state.points, direction, length, losses, slope, evaluate, tried)
        moves = torch.cat([moves, (at - state.points)[None]])[-self.history :]
        changes = torch.cat([changes, (new_slope - slope)[None]])[-self.history :]
        return OptimizerState(at, state.step + 1, (after, new_slope, moves, changes)), losses


def _backtrack(
    start: Tensor,
    direction: Tensor,
    length: Tensor,
    losses: Tensor,
    slope: Tensor,
    evaluate: Evaluate,
    tried: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Armijo's rule for each restart by itself, at most 12 halvings: the point, its losses and its slopes."""
    at, after, new_slope = tried
    drop = SUFFICIENT_DECREASE * (direction * slope).sum(1)
    for _ in range(12):
        high = ~(after <= losses + length[:, 0] * drop)
        if not bool(high.any()):
            break
        length = torch.where(high[:, None], length / 2, length)
        at = torch.where(high[:, None], start + length * direction, at)
        after, new_slope = evaluate(at)
    stuck = ~(after <= losses)
    at = torch.where(stuck[:, None], start, at)
    return at, torch.where(stuck, losses, after), torch.where(stuck[:, None], slope, new_slope)


def _direction(slope: Tensor, moves: Tensor, changes: Tensor) -> Tensor:
    """(R, n) the two-loop recursion; pairs without positive curvature are passed over, restart by restart."""
    direction = -slope
    curvature = (moves * changes).sum(2)  # (k, R)
    sound = has_curvature(curvature, moves, changes)
    weight = torch.where(sound, 1 / torch.where(sound, curvature, torch.ones_like(curvature)), 0.0)
    shares: list[Tensor] = []
    for k in reversed(range(len(moves))):
        share = weight[k] * (moves[k] * direction).sum(1)
        direction = direction - share[:, None] * changes[k]
        shares.append(share)
    if len(moves):
        scale = curvature[-1] / changes[-1].square().sum(1).clamp_min(1e-30)
        direction = direction * torch.where(sound[-1], scale, torch.ones_like(scale))[:, None]
    for k, share in zip(range(len(moves)), reversed(shares), strict=True):
        back = weight[k] * (changes[k] * direction).sum(1)
        direction = direction + (share - back)[:, None] * moves[k]
    return direction


def moved_to(state: OptimizerState, at: Tensor) -> OptimizerState:
    """The same state at a point that a projection (the box) moved; moments and history stay as they are."""
    return replace(state, points=at)
