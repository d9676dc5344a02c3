"""Exact recovery of a batch from the gradients of two leading linear layers, label-free, of unknown batch size.

With G1 = D1 X and G2 = D2 A (sums over the batch), rank and row space of G1 say how many samples there are and where
they lie. Roots of the span condition (sample_roots.py) are samples. Each sample found is peeled off, that is, its share
of both gradients is subtracted. That share is exact: its delta1 lies in the column space of G1 and is what its delta2,
in the column space of G2, sends back, so (s, t) is the null vector of [U1, -between'(z)^T W2^T U2]; its scale follows
from s S1^-1 q = 1. What remains is a smaller problem of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import FITS
from fedspill.leaks.inputs.exact.gradient_rank import CLEAR, TruncatedSvd, leading_directions, room, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LayerPair
from fedspill.leaks.inputs.exact.reckoned_time import OUT_OF_TIME, TimeLeft
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, descend, find_roots, is_known, usual_scale
from fedspill.leaks.inputs.exact.wide_batches import LayeredCondition, NetworkAbove, find_wide_roots, is_wide, polished

SCALES = (0.6, 1.0, 1.6, 2.5)  # of the starts, in turn
STARTS_EACH = 4  # for each sample that is sought, at most
# Without noise the search uses some of the units, which are equations enough, and the root is then refined on all.
CLEAN, FEWEST_UNITS, UNITS_EACH = 1e-4, 128, 16


@dataclass(frozen=True, eq=False)
class PairGradients:
    """The gradients of the first two layers, float64."""

    first: Tensor  # G1 (m, d)
    first_bias: Tensor | None  # (m,)
    second: Tensor  # G2 (m2, m)


@dataclass(frozen=True)
class RootSearchEffort:
    """How long the search goes on."""

    starts: int = 32
    rounds: int = 2  # of starts between peelings
    peels: int = 12  # in a row that find nothing new
    scale: float | None = None  # norm of a sample; None: that of a standardised one
    seconds: float = 120.0  # of one message, as reckoned (reckoned_time.py)


@dataclass(frozen=True, eq=False)
class RecoveredBatch:
    """The samples found: fewer than `batch` where the search gave up."""

    batch: int  # the rank of the first layer's gradient
    x: Tensor  # (k, d)
    residual: Tensor  # (k,) of the span condition
    delta: Tensor  # (k, m) what came back to the first layer for each sample
    tolerance: float
    tails: tuple[float, float]  # noise below the samples, in both layers
    signals: int  # the rank of the second layer's gradient, which is lower where samples send back alike
    in_time: bool = True

    @property
    def why_not_whole(self) -> str:
        """Why samples are missing, in words; nothing where none are."""
        if len(self.x) == self.batch:
            return ""
        if not self.in_time:
            return f"{len(self.x)} of {self.batch} samples were found: {OUT_OF_TIME}"
        if self.signals < self.batch:
            return (
                f"{len(self.x)} of {self.batch} samples were found: the second layer's gradient has {self.signals} "
                "directions, so that it tells only some of them apart"
            )
        return f"{len(self.x)} of {self.batch} samples were found before the search gave up"


@dataclass(frozen=True, eq=False)
class GradientBases:
    """Both gradients in few dimensions."""

    first: TruncatedSvd
    second: TruncatedSvd
    bias_equation: Tensor | None  # c (B,) with q . c = 1 for every sample
    sent_down: Tensor  # W2^T U2 (m, r): what second-layer deltas send to the first, without the map between

    @property
    def batch(self) -> int:
        return self.first.rank


def gradient_bases(
    pair: LayerPair,
    gradients: PairGradients,
    expected: int | None,
    rng: torch.Generator,
    *,
    drifts: bool = False,
) -> GradientBases:
    """The dimensions that the samples span; `expected` is how many there are said to be. Raises CannotRecover.

    There are fewer directions than samples where a sample occurs twice, and more only where their number is wrong, or
    where the gradient `drifts`: it is a mean over weights that moved, and holds small directions beside the samples.
    """
    first: TruncatedSvd | None
    if drifts and expected is not None:
        first = leading_directions(gradients.first, expected, rng)
    else:
        first = truncated_svd(gradients.first, expected, rng)
    if first is None:
        raise CannotRecover("the first layer's gradient has no clear rank: noise, drift, or more samples than units")
    if expected is not None and first.rank > expected:
        raise CannotRecover(
            f"the gradient has {first.rank} directions, so it does not come from {expected} samples in one step"
        )
    if first.rank >= room(gradients.first):
        raise CannotRecover(f"{first.rank} samples fill the first layer, which has room for {room(gradients.first)}")
    if first.rank >= room(gradients.second) or not float(first.sizes[-1]) > 0:
        raise CannotRecover(f"{first.rank} samples fill the second layer, which has room for {room(gradients.second)}")
    second = _second_directions(gradients.second, first.rank, rng, drifts=drifts)
    bias_equation = None if gradients.first_bias is None else (first.left.T @ gradients.first_bias) / first.sizes
    return GradientBases(first, second, bias_equation, (second.left.T @ pair.second.weight).T)


def _second_directions(gradient: Tensor, samples: int, rng: torch.Generator, *, drifts: bool) -> TruncatedSvd:
    """As many as there are samples, or fewer where that is clear: what few classes send back may be too much alike."""
    whole = leading_directions(gradient, samples, rng)
    if drifts or CLEAR * whole.tail < 1:
        return whole
    found = truncated_svd(gradient, samples, rng)
    return found if found is not None and found.rank < samples else whole


def recover_batch(
    pair: LayerPair,
    gradients: PairGradients,
    rng: torch.Generator,
    batch: int | None = None,
    effort: RootSearchEffort | None = None,
    tolerance: float | None = None,
    enough: int | None = None,
    *,
    drifts: bool = False,
    above: NetworkAbove | None = None,
) -> RecoveredBatch:
    """All samples that the search finds; raises CannotRecover where there are none to be found.

    With `enough` it stops at that many samples whose residual is no more than the noise explains. What is
    `above` the pair helps where the batch fills much of the first layer.
    """
    effort = effort or RootSearchEffort()
    bases = gradient_bases(pair, gradients, batch, rng, drifts=drifts)
    one, two = bases.first, bases.second
    if tolerance is None:
        tolerance = min(0.05, max(CLEAN, 2 * (one.tail + two.tail)))
    tight = min(tolerance, 2 * (one.tail + two.tail) + 1e-6)
    layer, scale = pair.first, effort.scale or usual_scale(one.right.shape[0])
    projected_weight = layer.weight @ one.right
    whole = SpanCondition.of(projected_weight, layer.bias, pair.between, two.right, bases.bias_equation)
    # The gradients in these few dimensions, from which samples are peeled.
    rest_first, rest_second = torch.diag(one.sizes), torch.diag(two.sizes)
    rest_bias = None if gradients.first_bias is None else one.left.T @ gradients.first_bias
    found, deltas = one.right.new_zeros(0, bases.batch), []
    time = TimeLeft(effort.seconds)
    idle, wide, further = 0, is_wide(whole), () if above is None else above.further
    for peel in range(effort.peels + bases.batch):
        left = bases.batch - len(found)
        # Where starts of every scale found nothing, more of them are not likely to.
        if left <= 0 or len(found) >= two.rank or idle == (len(SCALES) if not len(found) else effort.peels):
            break
        if time.is_over:
            break
        if enough and len(found) and int((whole.residual(found) < tight).sum()) >= enough:
            break
        idle += 1
        condition, back = whole, torch.eye(bases.batch, dtype=torch.float64, device=found.device)
        sizes = one.sizes
        if len(found):
            u, sizes, back_t = torch.linalg.svd(rest_first)
            back = back_t[:left].T
            row_space = two.right
            if two.tail < CLEAN:
                row_space = row_space @ torch.linalg.svd(rest_second)[2][: two.rank - len(found)].T
            bias_equation = None if rest_bias is None else (u[:, :left].T @ rest_bias) / sizes[:left]
            condition = SpanCondition.of(projected_weight @ back, layer.bias, pair.between, row_space, bias_equation)
        length = scale * SCALES[peel % len(SCALES)]
        if is_wide(condition):
            roots = find_wide_roots(condition, further, left, scale=length, rng=rng, spread=sizes[:left], time=time)
        else:
            if max(one.tail, two.tail) < CLEAN:
                condition = condition.thinned(max(FEWEST_UNITS, UNITS_EACH * left), rng)
            roots = find_roots(
                condition,
                left,
                scale=length,
                tolerance=tolerance if not len(found) else max(tolerance, 5e-3),
                rng=rng,
                spread=sizes[:left],
                starts=min(effort.starts, STARTS_EACH * left),
                rounds=effort.rounds,
                time=time,
            )
        if not len(roots):
            continue
        y = whole.y(roots @ back.T)
        if wide:
            y = polished(LayeredCondition.of(whole, further, y), y, rng, time)
            residual = whole.values(y).residual
        else:
            y, residual = descend(whole, y, 8, weighted=False)
        for index in residual.argsort().tolist():
            q = whole.q(y[index])
            if float(residual[index]) > tolerance or is_known(q, found) or len(found) == bases.batch:
                continue
            z = whole.z(y[index])
            s, t = deltas_of_sample(pair, bases, z)
            proof = s
            if wide and above is not None:
                sent = above.sent_down(z, one.left)
                if sent.outside > max(FITS, tolerance):
                    continue  # fewer units are awake for it than there are unknowns: it is told when these are fewer
                s, t = one.left.T @ sent.first, two.left.T @ sent.second
                if max(one.tail, two.tail) < CLEAN:
                    proof = s  # where both layers' columns fill much of the units, there are several null vectors
            counted = 1 / ((s / one.sizes) @ q)
            s, t, activation = counted * s, counted * t, pair.between.value(z[None])[0]
            found, idle = torch.cat([found, q[None]]), 0
            deltas.append(one.left @ proof / ((proof / one.sizes) @ q))
            rest_first = rest_first - s[:, None] * q
            rest_second = rest_second - t[:, None] * (two.right.T @ activation)
            rest_bias = None if rest_bias is None else rest_bias - s
    residual = whole.residual(found) if len(found) else found.new_zeros(0)
    delta = torch.stack(deltas) if deltas else found.new_zeros(0, len(layer.weight))
    tails = (one.tail, two.tail)
    x = found @ one.right.T
    return RecoveredBatch(bases.batch, x, residual, delta, tolerance, tails, two.rank, not time.is_over)


def deltas_of_sample(pair: LayerPair, bases: GradientBases, z: Tensor) -> tuple[Tensor, Tensor]:
    """delta1 and delta2 of a sample with first-layer values z (m,), in the bases of the gradients' columns, but for a
    common factor.
    """
    one = bases.first
    sent_down = pair.between.transposed_jacobian_times(z, bases.sent_down)
    null = torch.linalg.svd(torch.cat([one.left, -sent_down], 1), full_matrices=False)[2][-1]
    return null[: one.rank], null[one.rank :]
