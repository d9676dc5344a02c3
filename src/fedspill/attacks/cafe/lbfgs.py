"""Many small minimisations at once: L-BFGS in which every row has its own step, its own history and its own end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

# Points (b, p) and the rows (b,) they belong to; gives values (b,) and gradients (b, p).
Objective: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_SUFFICIENT = 1e-4  # Armijo: the share of the promised decrease that a step must bring
_HALVINGS = 6


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where each row ended: x (n, p), value (n,), and how many times a row was evaluated, all rows together."""

    x: Tensor
    value: Tensor
    evaluations: int


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int,
    tolerance: Tensor,
    memory: int = 12,
) -> Minimum:
    """Minimises each row of `start` (n, p) until its value is below its `tolerance` (n,)."""
    n, p = start.shape
    x = start.clone()
    every = torch.arange(n, device=x.device)
    value, gradient = objective(x, every)
    evaluations = n
    moves = x.new_zeros(memory, n, p)
    turns = x.new_zeros(memory, n, p)
    curvature = x.new_zeros(memory, n)  # 1 / (move . turn), 0 where a pair was refused
    scale = _first_scale(gradient)
    stuck = torch.zeros(n, dtype=torch.bool, device=x.device)
    for number in range(iterations):
        rows = ((value > tolerance) & ~stuck).nonzero().flatten()
        if len(rows) == 0:
            break
        pairs = [(number - 1 - back) % memory for back in range(min(number, memory))]  # newest first
        direction = -_two_loops(gradient[rows], rows, pairs, moves, turns, curvature, scale[rows])
        slope = (gradient[rows] * direction).sum(1)
        uphill = slope >= 0
        if bool(uphill.any()):
            direction[uphill] = -scale[rows][uphill, None] * gradient[rows][uphill]
            slope = (gradient[rows] * direction).sum(1)
        found, better, steeper, spent = _search(objective, rows, x[rows], value[rows], gradient[rows], direction, slope)
        evaluations += spent
        move, turn = found - x[rows], steeper - gradient[rows]
        product = (move * turn).sum(1)
        keep = product > 1e-10 * move.norm(dim=1) * turn.norm(dim=1)
        slot = number % memory
        moves[slot], turns[slot], curvature[slot] = 0, 0, 0
        moves[slot, rows] = torch.where(keep[:, None], move, 0)
        turns[slot, rows] = torch.where(keep[:, None], turn, 0)
        curvature[slot, rows] = torch.where(keep, 1 / product.clamp_min(1e-38), 0)
        fitted = product / turn.square().sum(1).clamp_min(1e-38)
        scale[rows] = torch.where(keep, fitted, scale[rows])
        stuck[rows] = better >= value[rows]
        x[rows], value[rows], gradient[rows] = found, better, steeper
    return Minimum(x, value, evaluations)


def _first_scale(gradient: Tensor) -> Tensor:
    """Before any pair is known, a first step of a tenth a coordinate: inputs are of order one."""
    scale: Tensor = 0.1 * gradient.shape[1] ** 0.5 / gradient.norm(dim=1).clamp_min(1e-30)
    return scale


def _two_loops(
    gradient: Tensor,
    rows: Tensor,
    pairs: list[int],
    moves: Tensor,
    turns: Tensor,
    curvature: Tensor,
    scale: Tensor,
) -> Tensor:
    """The inverse Hessian of the history times the gradient (b, p)."""
    q = gradient.clone()
    weights = []
    for pair in pairs:
        weight = curvature[pair, rows] * (moves[pair, rows] * q).sum(1)
        q -= weight[:, None] * turns[pair, rows]
        weights.append(weight)
    r = scale[:, None] * q
    for pair, weight in zip(reversed(pairs), reversed(weights), strict=True):
        other = curvature[pair, rows] * (turns[pair, rows] * r).sum(1)
        r += (weight - other)[:, None] * moves[pair, rows]
    return r


def _search(
    objective: Objective, rows: Tensor, x: Tensor, value: Tensor, gradient: Tensor, direction: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Backtracking with quadratic interpolation, row by row; a row that finds no better point stays where it is."""
    step = torch.ones_like(value)
    open_rows = torch.arange(len(rows), device=x.device)
    found, better, steeper = x.clone(), value.clone(), gradient.clone()
    spent = 0
    for _ in range(_HALVINGS):
        trial = x[open_rows] + step[open_rows, None] * direction[open_rows]
        there, its_gradient = objective(trial, rows[open_rows])
        spent += len(open_rows)
        promised = step[open_rows] * slope[open_rows]
        good = there <= value[open_rows] + _SUFFICIENT * promised
        done = open_rows[good]
        found[done], better[done], steeper[done] = trial[good], there[good], its_gradient[good]
        excess = (there - value[open_rows] - promised)[~good]
        promised, open_rows = promised[~good], open_rows[~good]
        if len(open_rows) == 0:
            break
        shrink = (-promised / (2 * excess).clamp_min(1e-38)).nan_to_num(0.1).clamp(0.1, 0.5)
        step[open_rows] *= shrink
    return found, better, steeper, spent
