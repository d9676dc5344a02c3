"""The root condition of single samples, and the search for all of its roots.

A sample is x = V q with V (d, B) the row space of the first layer's gradient. What the second layer was fed for it lies
in the row space V2 (m, r) of the second layer's gradient, so every true q is a root of

    F(q) = (I - V2 V2^T) between(W1 V q + b1),        m equations in B unknowns,

with no label, loss or upper layer in it. The bias gradient gives one linear equation more, q . c = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedspill.leaks.inputs.exact.between_layers import Between, Elementwise

DEFLATION = 20.0  # distance, in units of inputs, within which a known root repels the search
ALIKE = 3e-2  # roots nearer than this share of their norm are one


@dataclass(frozen=True, eq=False)
class SpanProblem:
    """The condition in free coordinates y: q = particular + free y, where the bias equation holds for every y."""

    between: Between
    outside: Tensor  # V2 (m, r), orthonormal
    particular: Tensor  # (B,)
    free: Tensor  # (B, n)
    slope: Tensor  # W1 V free (m, n)
    offset: Tensor  # (m,)
    power: float  # of the activations' norm by which the residual is divided

    @staticmethod
    def of(seen: Tensor, bias: Tensor | None, between: Between, outside: Tensor, unit: Tensor | None) -> SpanProblem:
        """`seen` W1 V (m, B), `outside` V2 (m, r), `unit` c (B,) with q . c = 1 or None."""
        size = seen.shape[1]
        if unit is None:
            particular, free = seen.new_zeros(size), torch.eye(size, dtype=seen.dtype, device=seen.device)
        else:
            particular = unit / (unit @ unit)
            free = torch.linalg.svd(unit[None], full_matrices=True)[2][1:].T.contiguous()
        offset = seen @ particular + (0 if bias is None else bias)
        power = _power(between, len(seen), seen)
        return SpanProblem(between, outside, particular, free, seen @ free, offset, power)

    def thinned(self, units: int, rng: torch.Generator) -> SpanProblem:
        """The condition on some of the units, drawn at random: every root is still one, at a share of the cost.

        The whole where units are not independent of each other, or few.
        """
        if not isinstance(self.between, Elementwise) or units >= len(self.offset):
            return self
        some = torch.randperm(len(self.offset), generator=rng)[:units].to(self.offset.device)
        outside = torch.linalg.qr(self.outside[some])[0]
        return replace(self, outside=outside, slope=self.slope[some], offset=self.offset[some])

    def q(self, y: Tensor) -> Tensor:
        return self.particular + y @ self.free.T

    def y(self, q: Tensor) -> Tensor:
        return (q - self.particular) @ self.free

    def z(self, y: Tensor) -> Tensor:
        return y @ self.slope.T + self.offset

    def values(self, y: Tensor) -> Values:
        """All that the search asks of points y (R, n)."""
        activations = self.between.value(self.z(y))
        inner = activations @ self.outside
        missed = (activations - inner @ self.outside.T).square().sum(1)
        return Values(activations, inner, missed, activations.square().sum(1))

    def residual(self, q: Tensor) -> Tensor:
        """(R,) the share of a candidate's activations that the second layer's gradient does not hold."""
        return self.values(self.y(q)).residual


@dataclass(frozen=True, eq=False)
class Values:
    """The condition at R points."""

    activations: Tensor  # (R, m)
    inner: Tensor  # (R, r) their part in the row space
    missed: Tensor  # (R,) |F|^2
    whole: Tensor  # (R,) |a|^2

    @property
    def residual(self) -> Tensor:
        return (self.missed / self.whole.clamp_min(1e-300)).sqrt()

    def where(self, better: Tensor, other: Values) -> Values:
        """`other` at the points where it is better."""
        row = better[:, None]
        return Values(
            torch.where(row, other.activations, self.activations),
            torch.where(row, other.inner, self.inner),
            torch.where(better, other.missed, self.missed),
            torch.where(better, other.whole, self.whole),
        )


def descend(
    problem: SpanProblem, y: Tensor, iterations: int, repel: Tensor | None = None, *, weighted: bool = True
) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt from starts y (R, n) on eta |F|: the points reached and their relative residuals.

    eta = |a|^-power times one pole for each known root in `repel` (k, B): without the first, samples of small norm
    swallow all starts, and without the poles the same few samples are found again and again.
    """
    values = problem.values(y)
    if problem.free.shape[1] == 0:  # one sample and its bias gradient: nothing is free
        return y, values.residual
    power = problem.power if weighted else 0.0
    damping = torch.full((len(y),), 1e-2, dtype=y.dtype, device=y.device)
    goal = _goal(problem, y, values, repel, power)
    for _ in range(iterations):
        jacobian = problem.between.push(problem.z(y), problem.slope)
        within = torch.matmul(problem.outside.T, jacobian)
        curvature = jacobian.transpose(1, 2) @ jacobian - within.transpose(1, 2) @ within
        growth = (jacobian.transpose(1, 2) @ values.activations[:, :, None])[:, :, 0]
        downhill = growth - (within.transpose(1, 2) @ values.inner[:, :, None])[:, :, 0]
        pull = _pole_slopes(problem, y, repel) - power * growth / values.whole[:, None].clamp_min(1e-300)
        cross = downhill[:, :, None] * pull[:, None, :]
        squared = values.missed[:, None, None] * pull[:, :, None] * pull[:, None]
        curvature = curvature + cross + cross.transpose(1, 2) + squared
        diagonal = curvature.diagonal(dim1=1, dim2=2).clamp_min(1e-14)
        ridge = damping[:, None] * diagonal + 1e-13 * diagonal.amax(1, keepdim=True)
        uphill = downhill + values.missed[:, None] * pull
        tried = y - torch.linalg.solve_ex(curvature + torch.diag_embed(ridge), uphill)[0]
        new_values = problem.values(tried)
        new_goal = _goal(problem, tried, new_values, repel, power)
        better = (new_goal < goal) & new_goal.isfinite()
        gain = (goal - new_goal) / goal.clamp_min(1e-300)
        damping = torch.where(better, damping * 0.2, damping * 5).clamp(1e-10, 1e8)
        y = torch.where(better[:, None], tried, y)
        values = values.where(better, new_values)
        goal = torch.where(better, new_goal, goal)
        settled = (better & (gain < 1e-3)) | (damping > 1e7) | (values.residual < 1e-9)
        if bool(settled.all()):
            break
    return y, values.residual


def find_roots(
    problem: SpanProblem,
    wanted: int,
    *,
    scale: float,
    tolerance: float,
    rng: torch.Generator,
    starts: int = 32,
    rounds: int = 2,
    iterations: int = 40,
) -> Tensor:
    """(k, B) distinct roots with relative residual below `tolerance`, at most `wanted`; several rounds of starts."""
    size = len(problem.particular)
    roots, dead = problem.particular.new_zeros(0, size), problem.particular.new_zeros(0, size)
    for _ in range(rounds):
        if len(roots) >= wanted:
            break
        q = torch.randn(starts, size, generator=rng, dtype=torch.float64).to(roots.device)
        if len(roots):  # away from what is known
            known = torch.linalg.qr(roots.T)[0]
            q = q - (q @ known) @ known.T
        q = q * scale / q.norm(dim=1, keepdim=True).clamp_min(1e-12)
        y, residual = descend(problem, problem.y(q), iterations, torch.cat([roots, dead]))
        near = residual < max(30 * tolerance, 0.02)
        if bool(near.any()):
            y_near, residual_near = descend(problem, y[near], 12, weighted=False)
            roots = _distinct(roots, problem.q(y_near), residual_near, tolerance)
        if not bool(near.all()):
            stuck = problem.q(y[~near])
            apart = _distinct(stuck[:0], stuck, torch.zeros(len(stuck)), 1.0)
            if len(apart) < starts // 4:  # few places swallow the starts: keep away from them
                dead = torch.cat([dead, apart])[-16:]
    return roots[:wanted]


def _distinct(known: Tensor, found: Tensor, residual: Tensor, tolerance: float) -> Tensor:
    """`known` with those of `found` that are good and new, best first."""
    for index in residual.argsort().tolist():
        if not float(residual[index]) < tolerance:
            break
        if not is_known(found[index], known):
            known = torch.cat([known, found[index][None]])
    return known


def is_known(q: Tensor, known: Tensor) -> bool:
    """Whether q (B,) is one of `known` (k, B), up to a factor: without a bias equation roots may come in rays."""
    if not len(known):
        return False
    onto = (known @ q) / q.square().sum().clamp_min(1e-300)
    return bool(((known - onto[:, None] * q).norm(dim=1) < ALIKE * known.norm(dim=1)).any())


def _goal(problem: SpanProblem, y: Tensor, values: Values, repel: Tensor | None, power: float) -> Tensor:
    """(R,) eta^2 |F|^2."""
    goal = values.missed * values.whole.clamp_min(1e-300) ** -power
    if repel is None or not len(repel):
        return goal
    square = (problem.q(y)[:, None] - repel).square().sum(2).clamp_min(1e-12)
    return goal * (1 + DEFLATION**2 / square).square().prod(1)


def _pole_slopes(problem: SpanProblem, y: Tensor, repel: Tensor | None) -> Tensor:
    """(R, n) the gradient of the logarithm of all poles."""
    if repel is None or not len(repel):
        return torch.zeros_like(y)
    apart = problem.q(y)[:, None] - repel
    square = apart.square().sum(2).clamp_min(1e-12)
    pole = DEFLATION**2 / square
    return -(2 * (pole / (1 + pole) / square)[..., None] * apart).sum(1) @ problem.free


def _power(between: Between, width: int, like: Tensor) -> float:
    """1 where activations grow with their input, as the residual then does; 1.5 where they are bounded.

    More would let the search run off to infinity, where a bounded residual over a growing norm vanishes as well.
    """
    z = torch.linspace(-3, 3, max(width, 2), dtype=like.dtype, device=like.device)[None, :width]
    near, far = between.value(z).norm(), between.value(100 * z).norm()
    return 1.5 if bool(far < 10 * near) else 1.0


def usual_scale(features: int) -> float:
    """The norm of a standardised sample of that many features."""
    return math.sqrt(features)
