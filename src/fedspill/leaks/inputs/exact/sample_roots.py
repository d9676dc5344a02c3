"""The span condition, which every single sample of a batch fulfils, and the search for all of its roots.

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

from fedspill.leaks.inputs.exact.between_layers import Elementwise, MapBetweenLayers
from fedspill.leaks.inputs.exact.reckoned_time import MULTIPLICATION, THROUGH_NETWORK, VALUE, TimeLeft

DEFLATION = 20.0  # distance, in units of inputs, within which the search is kept away from a known root
DEPENDENT = 1e-3  # share of the largest singular value of linear equations below which one follows from the others
ALIKE = 3e-2  # roots nearer than this share of their norm are one


@dataclass(frozen=True, eq=False)
class SpanCondition:
    """The condition in free coordinates y: q = particular + free y, where the bias equation holds for every y."""

    between: MapBetweenLayers
    row_space: Tensor  # V2 (m, r), orthonormal
    particular: Tensor  # (B,)
    free: Tensor  # (B, n)
    slope: Tensor  # W1 V free (m, n)
    offset: Tensor  # (m,)
    power: float  # of the activations' norm by which the residual is divided

    @staticmethod
    def of(
        projected_weight: Tensor,
        bias: Tensor | None,
        between: MapBetweenLayers,
        row_space: Tensor,
        bias_equation: Tensor | None,
    ) -> SpanCondition:
        """`projected_weight` W1 V (m, B), `row_space` V2 (m, r), `bias_equation` c (B,) with q . c = 1 or None."""
        size = projected_weight.shape[1]
        equations = projected_weight.new_zeros(0, size) if bias_equation is None else bias_equation[None]
        return SpanCondition.within(
            projected_weight, bias, between, row_space, equations, projected_weight.new_ones(len(equations))
        )

    @staticmethod
    def within(
        projected_weight: Tensor,
        bias: Tensor | None,
        between: MapBetweenLayers,
        row_space: Tensor,
        equations: Tensor,
        values: Tensor,
    ) -> SpanCondition:
        """The same for samples of which linear equations (e, B) hold, q . equations = values (e,)."""
        left, sizes, right = torch.linalg.svd(equations, full_matrices=True)
        rank = int((sizes > DEPENDENT * sizes[0]).sum()) if len(sizes) else 0
        particular = right[:rank].T @ ((left[:, :rank].T @ values) / sizes[:rank])
        free = right[rank:].T.contiguous()
        offset = projected_weight @ particular + (0 if bias is None else bias)
        power = _power(between, len(projected_weight), projected_weight)
        return SpanCondition(between, row_space, particular, free, projected_weight @ free, offset, power)

    def thinned(self, units: int, rng: torch.Generator) -> SpanCondition:
        """The condition on some units, drawn at random: every root of the whole is one of it, at a share of the cost.

        Returns the whole condition where a unit depends on others (layer norm), or there are no more units than asked.
        """
        if not isinstance(self.between, Elementwise) or units >= len(self.offset):
            return self
        some = torch.randperm(len(self.offset), generator=rng)[:units].to(self.offset.device)
        row_space = torch.linalg.qr(self.row_space[some])[0]
        return replace(self, row_space=row_space, slope=self.slope[some], offset=self.offset[some])

    @property
    def seconds_each(self) -> float:
        """What one move of one start takes, as reckoned."""
        units, unknowns = self.slope.shape
        through = VALUE * units * unknowns if isinstance(self.between, Elementwise) else THROUGH_NETWORK * unknowns
        return through + MULTIPLICATION * (units + len(self.row_space)) * unknowns**2

    def q(self, y: Tensor) -> Tensor:
        return self.particular + y @ self.free.T

    def y(self, q: Tensor) -> Tensor:
        return (q - self.particular) @ self.free

    def z(self, y: Tensor) -> Tensor:
        return y @ self.slope.T + self.offset

    def values(self, y: Tensor) -> ConditionValues:
        """All that the search asks of points y (R, n)."""
        activations = self.between.value(self.z(y))
        inner = activations @ self.row_space
        missed = (activations - inner @ self.row_space.T).square().sum(1)
        return ConditionValues(activations, inner, missed, activations.square().sum(1))

    def residual(self, q: Tensor) -> Tensor:
        """(R,) the share of a candidate's activations that the second layer's gradient does not hold."""
        return self.values(self.y(q)).residual


@dataclass(frozen=True, eq=False)
class ConditionValues:
    """The condition at R points."""

    activations: Tensor  # (R, m)
    inner: Tensor  # (R, r) their part in the row space
    missed: Tensor  # (R,) |F|^2
    whole: Tensor  # (R,) |a|^2

    @property
    def residual(self) -> Tensor:
        return (self.missed / self.whole.clamp_min(1e-300)).sqrt()

    def where(self, better: Tensor, other: ConditionValues) -> ConditionValues:
        """`other` at the points where it is better."""
        row = better[:, None]
        return ConditionValues(
            torch.where(row, other.activations, self.activations),
            torch.where(row, other.inner, self.inner),
            torch.where(better, other.missed, self.missed),
            torch.where(better, other.whole, self.whole),
        )


def descend(
    condition: SpanCondition,
    y: Tensor,
    iterations: int,
    repel: Tensor | None = None,
    *,
    weighted: bool = True,
    time: TimeLeft | None = None,
) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt from starts y (R, n) on eta |F|: the points reached and their relative residuals.

    It ends where it stands when the `time` is over.

    eta = |a|^-power times one pole for each known root in `repel` (k, B). Without the power nearly all starts end at
    samples of small norm; without the poles the same few samples are found again and again.
    """
    values = condition.values(y)
    if condition.free.shape[1] == 0:  # one sample with a bias gradient has no free coordinate
        return y, values.residual
    power = condition.power if weighted else 0.0
    damping = torch.full((len(y),), 1e-2, dtype=y.dtype, device=y.device)
    goal = _goal(condition, y, values, repel, power)
    for _ in range(iterations):
        if time is not None:
            time.spend(len(y) * condition.seconds_each)
            if time.is_over:
                break
        jacobian = condition.between.jacobian_times(condition.z(y), condition.slope)
        within = torch.matmul(condition.row_space.T, jacobian)
        curvature = jacobian.transpose(1, 2) @ jacobian - within.transpose(1, 2) @ within
        growth = (jacobian.transpose(1, 2) @ values.activations[:, :, None])[:, :, 0]
        downhill = growth - (within.transpose(1, 2) @ values.inner[:, :, None])[:, :, 0]
        pull = _pole_slopes(condition, y, repel) - power * growth / values.whole[:, None].clamp_min(1e-300)
        cross = downhill[:, :, None] * pull[:, None, :]
        squared = values.missed[:, None, None] * pull[:, :, None] * pull[:, None]
        curvature = curvature + cross + cross.transpose(1, 2) + squared
        diagonal = curvature.diagonal(dim1=1, dim2=2).clamp_min(1e-14)
        ridge = damping[:, None] * diagonal + 1e-13 * diagonal.amax(1, keepdim=True)
        uphill = downhill + values.missed[:, None] * pull
        tried = y - torch.linalg.solve_ex(curvature + torch.diag_embed(ridge), uphill)[0]
        new_values = condition.values(tried)
        new_goal = _goal(condition, tried, new_values, repel, power)
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
    condition: SpanCondition,
    wanted: int,
    *,
    scale: float,
    tolerance: float,
    rng: torch.Generator,
    spread: Tensor | None = None,
    starts: int = 32,
    rounds: int = 2,
    iterations: int = 40,
    known: Tensor | None = None,
    time: TimeLeft | None = None,
) -> Tensor:
    """(k, B) distinct roots with relative residual below `tolerance`, at most `wanted`; several rounds of starts.

    `spread` (B,) are the gradient's singular values along the coordinates. A start that reaches as far as these is a
    mixture of the samples, of which inputs that share a large mean have most; one that reaches as far everywhere finds
    the samples that are unlike the others. Each start draws how far it follows them. Roots that are `known` (k, B)
    already come first.
    """
    size = len(condition.particular)
    roots, dead = condition.particular.new_zeros(0, size), condition.particular.new_zeros(0, size)
    roots = roots if known is None else known
    for _ in range(rounds):
        if len(roots) >= wanted or (time is not None and time.is_over):
            break
        q = torch.randn(starts, size, generator=rng, dtype=torch.float64).to(roots.device)
        if spread is not None:
            power = torch.rand(starts, 1, generator=rng, dtype=torch.float64).to(q)
            q = q * (spread / spread[0]) ** power
        if len(roots):  # start at right angles to the known roots
            known = torch.linalg.qr(roots.T)[0]
            q = q - (q @ known) @ known.T
        q = q * scale / q.norm(dim=1, keepdim=True).clamp_min(1e-12)
        y, residual = descend(condition, condition.y(q), iterations, torch.cat([roots, dead]), time=time)
        near = residual < max(30 * tolerance, 0.02)
        if bool(near.any()):
            y_near, residual_near = descend(condition, y[near], 12, weighted=False, time=time)
            roots = _distinct(roots, condition.q(y_near), residual_near, tolerance)
        if not bool(near.all()):
            stuck = condition.q(y[~near])
            apart = _distinct(stuck[:0], stuck, torch.zeros(len(stuck)), 1.0)
            if len(apart) < starts // 4:  # many starts ended in few false minima: keep away from those, too
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
    """Whether q (B,) is one of `known` (k, B), up to a factor: without a bias, multiples of a root may be roots."""
    if not len(known):
        return False
    onto = (known @ q) / q.square().sum().clamp_min(1e-300)
    return bool(((known - onto[:, None] * q).norm(dim=1) < ALIKE * known.norm(dim=1)).any())


def _goal(condition: SpanCondition, y: Tensor, values: ConditionValues, repel: Tensor | None, power: float) -> Tensor:
    """(R,) eta^2 |F|^2."""
    goal = values.missed * values.whole.clamp_min(1e-300) ** -power
    if repel is None or not len(repel):
        return goal
    square = (condition.q(y)[:, None] - repel).square().sum(2).clamp_min(1e-12)
    return goal * (1 + DEFLATION**2 / square).square().prod(1)


def _pole_slopes(condition: SpanCondition, y: Tensor, repel: Tensor | None) -> Tensor:
    """(R, n) the gradient of the logarithm of all poles."""
    if repel is None or not len(repel):
        return torch.zeros_like(y)
    apart = condition.q(y)[:, None] - repel
    square = apart.square().sum(2).clamp_min(1e-12)
    pole = DEFLATION**2 / square
    return -(2 * (pole / (1 + pole) / square)[..., None] * apart).sum(1) @ condition.free


def _power(between: MapBetweenLayers, width: int, like: Tensor) -> float:
    """1 where activations grow with their input, as the residual then does; 1.5 where they are bounded.

    A higher power would let the search diverge, since a bounded residual over a growing norm also tends to zero.
    """
    z = torch.linspace(-3, 3, max(width, 2), dtype=like.dtype, device=like.device)[None, :width]
    near, far = between.value(z).norm(), between.value(100 * z).norm()
    return 1.5 if bool(far < 10 * near) else 1.0


def usual_scale(features: int) -> float:
    """The norm of a standardised sample of that many features."""
    return math.sqrt(features)
