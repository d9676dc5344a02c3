"""Many small minimisations at once: L-BFGS in which every row has its own step, its own history and its own end.

A sweep evaluates one trial point of every open row; each row then accepts it and computes a new direction, or shortens
its step. No row waits for the line search of another, and a sweep never waits for the device, so that a GPU replays it
as one recorded graph, the same for all stages of a schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor

from fedspill.cuda_graphs import WARM, record_graph
from fedspill.leaks.inputs.lbfgs_rules import SUFFICIENT_DECREASE, has_curvature

# Weight of the objective's second term, one for all rows or (n,), and how many points of each row are evaluated.
WeightedStage: TypeAlias = tuple[float | Tensor, int]

_HALVINGS = 6
_TINY = 1e-38
# Asking which rows are done makes a GPU wait, and dropping them means recording the sweep anew.
_SWEEPS_PER_CHECK = 8  # between two such questions
_LONG = 10  # sweeps from which on recording one saves time
_WORTH = 20_000  # evaluations of finished rows from which on recording without them saves time


class RowObjective(ABC):
    """What is minimised, for a number of rows at a time."""

    @abstractmethod
    def __call__(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Values (b,) and gradients (b, p) at points (b, p), with weights (b,) of the second term."""

    @abstractmethod
    def only(self, rows: Tensor) -> RowObjective:
        """The same for some of the rows, in ascending order."""


@dataclass(frozen=True, eq=False)
class RowMinima:
    """Where each row ended: x (n, p), its value (n,) without second term, and how often a row was evaluated."""

    x: Tensor
    value: Tensor
    evaluations: int


def minimise(
    objective: RowObjective, start: Tensor, *, stages: Sequence[WeightedStage], tolerance: Tensor, memory: int = 12
) -> RowMinima:
    """Takes each row of `start` (n, p) through the stages; it leaves once its value is below its `tolerance` (n,)."""
    x = start.clone()
    value = torch.full_like(tolerance, torch.inf)
    evaluations, to_go = 0, sum(iterations for _, iterations in stages)
    search: _Search | None = None
    for weight, iterations in stages:
        left = (value > tolerance).nonzero().flatten()
        if len(left) == 0:
            break
        if search is None or (len(search.number) - len(left)) * to_go > (_WORTH if x.is_cuda else 0):
            search = _Search(objective.only(left), left, x[left], tolerance[left], memory)
        search.begin(x, weight, value)
        search.run(iterations)
        x[search.number] = search.rows.x
        value[search.number] = search.end(last=isinstance(weight, float) and weight == 0)
        evaluations += search.spent()
        to_go -= iterations
    return RowMinima(x, value, evaluations)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows worked on; all tensors have them as first dimension, and a sweep changes them in place."""

    x: Tensor
    value: Tensor
    gradient: Tensor
    weight: Tensor
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


@final
class _Search:
    """Some rows of the whole problem, and the sweep over them, which on a GPU is recorded once for all stages."""

    def __init__(self, objective: RowObjective, number: Tensor, x: Tensor, tolerance: Tensor, memory: int) -> None:
        self.number = number  # of each row in the whole problem
        none = x.new_zeros(len(x), memory, x.shape[1])
        refused = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        of_rows = [torch.zeros_like(tolerance) for _ in range(4)]
        self.rows = _Rows(
            x, of_rows[0], torch.zeros_like(x), of_rows[1], tolerance, of_rows[2], refused, of_rows[3], none,
            none.clone(),
        )  # fmt: skip
        self._objective = objective
        self._replay: Callable[[], None] | None = None
        self._spent = 0

    def begin(self, x: Tensor, weight: float | Tensor, value: Tensor) -> None:
        """A stage of that weight, from x (n, p) of the whole problem; rows below their tolerance stay as they are."""
        rows = self.rows
        rows.x.copy_(x[self.number])
        if isinstance(weight, Tensor):
            rows.weight.copy_(weight[self.number])
        else:
            rows.weight.fill_(weight)
        there, gradient = self._evaluate()
        rows.value.copy_(there)
        rows.gradient.copy_(gradient)
        rows.scale.copy_(_first_scale(gradient))
        rows.step.fill_(1)
        rows.moves.zero_()
        rows.turns.zero_()
        rows.refused.copy_(torch.where(value[self.number] > rows.tolerance, 0, _HALVINGS))

    def run(self, iterations: int) -> None:
        """Sweeps until no row is open, or that many times; finished rows are dropped where that saves time."""
        objective, rows, gpu = self._objective, self.rows, self.rows.x.is_cuda
        place = torch.arange(len(rows.x), device=rows.x.device)
        play: Callable[[], None] = self._replay or partial(_sweep, objective, rows)
        sweep = next_check = 0
        while sweep < iterations:
            if sweep >= next_check:
                kept = rows.open.nonzero().flatten()
                if len(kept) == 0:
                    break
                if (len(rows.x) - len(kept)) * (iterations - sweep) > (_WORTH if gpu else 0):
                    self._put_back(place, rows)
                    objective, rows, place = objective.only(kept), rows.only(kept), place[kept]
                    play = partial(_sweep, objective, rows)
                next_check = sweep + (_SWEEPS_PER_CHECK if gpu else 1)
            if gpu and isinstance(play, partial) and iterations - sweep > _LONG:
                play = record_graph(play)
                self._replay = play if rows is self.rows else self._replay
                done = WARM
            else:
                play()
                done = 1
            sweep += done
            self._spent += done * len(rows.x)
        self._put_back(place, rows)

    def end(self, *, last: bool) -> Tensor:
        """The values (b,) without the second term; `last`: it had no weight, so that they are known."""
        if not last:
            self.rows.weight.zero_()
            self.rows.value.copy_(self._evaluate()[0])
        return self.rows.value

    def spent(self) -> int:
        """Evaluations of rows since this was last asked."""
        spent, self._spent = self._spent, 0
        return spent

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        self._spent += len(self.rows.x)
        return self._objective(self.rows.x, self.rows.weight)

    def _put_back(self, place: Tensor, rows: _Rows) -> None:
        if rows is not self.rows:
            self.rows.x[place], self.rows.value[place] = rows.x, rows.value


def _first_scale(gradient: Tensor) -> Tensor:
    """Before any pair is known, a first step of a tenth a coordinate: inputs are of order one."""
    scale: Tensor = 0.1 * gradient.shape[1] ** 0.5 / gradient.norm(dim=1).clamp_min(1e-30)
    return scale


def _sweep(objective: RowObjective, rows: _Rows) -> None:
    """One trial point of every row: backtracking with quadratic interpolation, row by row."""
    direction, slope = _descent(rows)
    trial = rows.x + rows.step[:, None] * direction
    there, gradient = objective(trial, rows.weight)
    promised = rows.step * slope
    taken = (there <= rows.value + SUFFICIENT_DECREASE * promised) & rows.open
    excess = there - rows.value - promised
    shrink = (-promised / (2 * excess).clamp_min(_TINY)).nan_to_num(0.1).clamp(0.1, 0.5)
    move, turn = trial - rows.x, gradient - rows.gradient
    product = (move * turn).sum(1)
    kept = taken & has_curvature(product, move, turn)
    weight = product.clamp_min(_TINY).rsqrt()[:, None]
    rows.moves.copy_(_appended(rows.moves, weight * move, kept))
    rows.turns.copy_(_appended(rows.turns, weight * turn, kept))
    stays = taken & (there >= rows.value)  # accepted without a decrease: floating point resolves no more
    rows.refused.copy_(torch.where(taken, torch.where(stays, _HALVINGS, 0), rows.refused + 1))
    rows.step.copy_(torch.where(taken, 1, rows.step * shrink))
    rows.x.copy_(torch.where(taken[:, None], trial, rows.x))
    rows.gradient.copy_(torch.where(taken[:, None], gradient, rows.gradient))
    rows.value.copy_(torch.where(taken, there, rows.value))


def _appended(history: Tensor, newest: Tensor, kept: Tensor) -> Tensor:
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
