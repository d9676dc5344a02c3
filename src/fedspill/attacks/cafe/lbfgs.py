"""Many small minimisations at once: L-BFGS in which every row has its own step, its own history and its own end.

A sweep looks at one trial point of every open row; each row then takes it and turns, or shortens its step. No row waits
for the search of another, and a sweep asks nothing of the device, so that a GPU replays it as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from fedspill.attacks.cafe.graphs import WARM, recorded

# Points (b, p) and the rows (b,) they belong to; gives values (b,) and gradients (b, p).
Objective: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_SUFFICIENT = 1e-4  # Armijo: the share of the promised decrease that a step must bring
_HALVINGS = 6
_TINY = 1e-38
# A GPU waits for each look at which rows are done, and records the sweep anew where their number changes.
_BETWEEN = 8  # sweeps between two looks
_SHRINK = 0.5  # share of open rows at which the others are dropped
_WORTH = 10  # sweeps to go that make up for recording one


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where each row ended: x (n, p), value (n,), and how many times a row was evaluated, all rows together."""

    x: Tensor
    value: Tensor
    evaluations: int


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows still worked on; all tensors have them as first dimension, and a sweep changes them in place."""

    number: Tensor  # of the row in the whole problem
    x: Tensor
    value: Tensor
    gradient: Tensor
    tolerance: Tensor
    step: Tensor
    refused: Tensor  # trial points since the last that was taken
    scale: Tensor  # of the first step, before any pair is known
    moves: Tensor  # (b, memory, p), newest last, each pair divided by the root of move . turn; zero where none
    turns: Tensor

    @property
    def open(self) -> Tensor:
        return (self.value > self.tolerance) & (self.refused < _HALVINGS)

    def only(self, kept: Tensor) -> _Rows:
        return _Rows(**{name: tensor[kept] for name, tensor in vars(self).items()})


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int,
    tolerance: Tensor,
    memory: int = 12,
) -> Minimum:
    """Looks at `iterations` points of each row of `start` (n, p), or until its value is below its `tolerance` (n,)."""
    x = start.clone()
    every = torch.arange(len(x), device=x.device)
    value, gradient = objective(x, every)
    evaluations = len(x)
    none = x.new_zeros(len(x), memory, x.shape[1])
    scale = _first_scale(gradient)
    refused = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    rows = _Rows(
        every, x.clone(), value.clone(), gradient, tolerance, torch.ones_like(value), refused, scale, none, none.clone()
    )
    gpu = x.is_cuda
    play: Callable[[], object] = partial(_sweep, objective, rows)
    fresh = True  # whether the rows changed since the sweep was recorded
    sweep = look = 0
    while sweep < iterations:
        if sweep >= look:
            kept = rows.open.nonzero().flatten()
            if len(kept) == 0:
                break
            if len(kept) <= (_SHRINK if gpu else 1) * len(rows.x) and len(kept) < len(rows.x):
                x[rows.number], value[rows.number] = rows.x, rows.value
                rows, fresh = rows.only(kept), True
                play = partial(_sweep, objective, rows)
            look = sweep + (_BETWEEN if gpu else 1)
        if gpu and fresh and iterations - sweep > _WORTH:
            play, fresh, done = recorded(partial(_sweep, objective, rows)), False, WARM
        else:
            play()
            done = 1
        sweep += done
        evaluations += done * len(rows.x)
    x[rows.number], value[rows.number] = rows.x, rows.value
    return Minimum(x, value, evaluations)


def _first_scale(gradient: Tensor) -> Tensor:
    """Before any pair is known, a first step of a tenth a coordinate: inputs are of order one."""
    scale: Tensor = 0.1 * gradient.shape[1] ** 0.5 / gradient.norm(dim=1).clamp_min(1e-30)
    return scale


def _sweep(objective: Objective, rows: _Rows) -> None:
    """One trial point of every row: backtracking with quadratic interpolation, row by row."""
    direction, slope = _descent(rows)
    trial = rows.x + rows.step[:, None] * direction
    there, gradient = objective(trial, rows.number)
    promised = rows.step * slope
    taken = (there <= rows.value + _SUFFICIENT * promised) & rows.open
    excess = there - rows.value - promised
    shrink = (-promised / (2 * excess).clamp_min(_TINY)).nan_to_num(0.1).clamp(0.1, 0.5)
    move, turn = trial - rows.x, gradient - rows.gradient
    product = (move * turn).sum(1)
    kept = taken & (product > 1e-10 * move.norm(dim=1) * turn.norm(dim=1))
    weight = product.clamp_min(_TINY).rsqrt()[:, None]
    rows.moves.copy_(_pushed(rows.moves, weight * move, kept))
    rows.turns.copy_(_pushed(rows.turns, weight * turn, kept))
    stays = taken & (there >= rows.value)  # at the limit of what floating point can tell
    rows.refused.copy_(torch.where(taken, torch.where(stays, _HALVINGS, 0), rows.refused + 1))
    rows.step.copy_(torch.where(taken, 1, rows.step * shrink))
    rows.x.copy_(torch.where(taken[:, None], trial, rows.x))
    rows.gradient.copy_(torch.where(taken[:, None], gradient, rows.gradient))
    rows.value.copy_(torch.where(taken, there, rows.value))


def _pushed(history: Tensor, newest: Tensor, kept: Tensor) -> Tensor:
    """The history (b, memory, p) with the newest vector (b, p) as last, in rows where it is kept (b,)."""
    return torch.where(kept[:, None, None], torch.cat([history[:, 1:], newest[:, None]], 1), history)


def _descent(rows: _Rows) -> tuple[Tensor, Tensor]:
    """Directions (b, p) and their slopes (b,): minus the inverse Hessian of the history times the gradient.

    In the compact form of Byrd, Nocedal and Schnabel (1994), which takes a few products of matrices where the usual two
    loops take four vector operations a pair. Pairs are scaled to move . turn = 1, so R has a diagonal of ones.
    """
    g, s, y = rows.gradient, rows.moves, rows.turns
    newest = y[:, -1].square().sum(1)
    scale = torch.where(newest > 0, 1 / newest.clamp_min(_TINY), rows.scale)[:, None]
    upper = (s @ y.transpose(1, 2)).double().triu(1)  # unit upper triangular R, its diagonal left out
    along_moves, along_turns = ((part @ g[:, :, None]).double() for part in (s, y))
    first = torch.linalg.solve_triangular(upper, along_moves, upper=True, unitriangular=True)
    inner = first + scale.double()[:, :, None] * ((y @ y.transpose(1, 2)).double() @ first - along_turns)
    second = torch.linalg.solve_triangular(upper.transpose(1, 2), inner, upper=False, unitriangular=True)
    direction = -(
        scale * g
        + (s.transpose(1, 2) @ second.to(g))[:, :, 0]
        - scale * (y.transpose(1, 2) @ first.to(g))[:, :, 0]
    )  # fmt: skip
    slope = (g * direction).sum(1)
    downhill = slope < 0
    direction = torch.where(downhill[:, None], direction, -rows.scale[:, None] * g)
    return direction, torch.where(downhill, slope, -rows.scale * g.square().sum(1))
