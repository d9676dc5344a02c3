"""Exact recovery of a batch from the gradients of two leading linear layers, label-free, of unknown batch size.

With G1 = D1 X and G2 = D2 A (sums over the batch), rank and row space of G1 say how many samples there are and where
they lie. Roots of the span condition are samples. Each sample found is peeled off exactly: its delta1 lies in the
column space of G1 and is the pull of its delta2, which lies in that of G2, so (s, t) is the null vector of
[U1, -between'(z)^T W2^T U2]; its scale follows from s S1^-1 q = 1. What remains is a smaller problem of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import Spectrum, leading, spectrum_of
from fedspill.leaks.inputs.exact.leading_layers import Pair
from fedspill.leaks.inputs.exact.sample_roots import SpanProblem, descend, find_roots, is_known, usual_scale

SCALES = (0.6, 1.0, 1.6, 2.5)  # of the starts, in turn
STARTS_EACH = 4  # for each sample that is sought, at most
# Without noise a root is sought on part of the units only: equations enough to hold it, then polished on all of them.
CLEAN, FEWEST_UNITS, UNITS_EACH = 1e-4, 128, 16


@dataclass(frozen=True, eq=False)
class Observed:
    """The gradients of the first two layers, float64."""

    first: Tensor  # G1 (m, d)
    first_bias: Tensor | None  # (m,)
    second: Tensor  # G2 (m2, m)


@dataclass(frozen=True)
class Effort:
    """How long the search goes on."""

    starts: int = 32
    rounds: int = 2  # of starts between peelings
    peels: int = 12
    scale: float | None = None  # norm of a sample; None: that of a standardised one


@dataclass(frozen=True, eq=False)
class Recovered:
    """The samples found: fewer than `batch` where the search gave up."""

    batch: int  # the rank of the first layer's gradient
    x: Tensor  # (k, d)
    residual: Tensor  # (k,) of the span condition
    delta: Tensor  # (k, m) what came back to the first layer for each sample
    tolerance: float
    tails: tuple[float, float]  # noise below the samples, in both layers


@dataclass(frozen=True, eq=False)
class Basis:
    """Both gradients in few dimensions."""

    first: Spectrum
    second: Spectrum
    unit: Tensor | None  # c (B,) with q . c = 1 for every sample
    pulled: Tensor  # W2^T U2 (m, r): what second-layer deltas send to the first, activation apart

    @property
    def batch(self) -> int:
        return self.first.rank


def basis_of(pair: Pair, seen: Observed, told: int | None, rng: torch.Generator) -> Basis:
    """The dimensions that the samples span; `told` is how many there are said to be. Raises CannotRecover.

    Fewer directions than samples are samples that occur twice; more are a lie about their number.
    """
    first = spectrum_of(seen.first, told, rng)
    if first is None:
        raise CannotRecover("the first layer's gradient has no clear rank: noise, drift, or more samples than units")
    if told is not None and first.rank > told:
        raise CannotRecover(
            f"the gradient has {first.rank} directions, so it does not come from {told} samples in one step"
        )
    rows, columns = seen.first.shape
    if first.rank >= min(rows, columns):
        raise CannotRecover(f"{first.rank} samples fill the first layer ({rows} units, {columns} inputs)")
    if first.rank >= min(seen.second.shape) or not float(first.sizes[-1]) > 0:
        raise CannotRecover(f"{first.rank} samples fill the second layer ({seen.second.shape[0]} units)")
    second = leading(seen.second, first.rank, rng)
    unit = None if seen.first_bias is None else (first.left.T @ seen.first_bias) / first.sizes
    return Basis(first, second, unit, (second.left.T @ pair.second.weight).T)


def recover(
    pair: Pair,
    seen: Observed,
    rng: torch.Generator,
    batch: int | None = None,
    effort: Effort | None = None,
    tolerance: float | None = None,
    enough: int | None = None,
) -> Recovered:
    """All samples that the search finds; raises CannotRecover where there are none to be found.

    With `enough` it stops at that many samples whose residual is no more than the noise explains.
    """
    effort = effort or Effort()
    basis = basis_of(pair, seen, batch, rng)
    one, two = basis.first, basis.second
    if tolerance is None:
        tolerance = min(0.05, max(1e-3, 2 * (one.tail + two.tail)))
    tight = min(tolerance, 2 * (one.tail + two.tail) + 1e-6)
    layer, scale = pair.first, effort.scale or usual_scale(one.right.shape[0])
    seen_inside = layer.weight @ one.right
    whole = SpanProblem.of(seen_inside, layer.bias, pair.between, two.right, basis.unit)
    # The gradients in these few dimensions, from which samples are peeled.
    rest_first, rest_second = torch.diag(one.sizes), torch.diag(two.sizes)
    rest_bias = None if seen.first_bias is None else one.left.T @ seen.first_bias
    found, deltas = one.right.new_zeros(0, basis.batch), []
    for peel in range(effort.peels):
        if peel == len(SCALES) and not len(found):
            break  # no root from starts of any scale: it is not a matter of luck
        left = basis.batch - len(found)
        if left <= 0 or (enough and len(found) and int((whole.residual(found) < tight).sum()) >= enough):
            break
        problem, back = whole, torch.eye(basis.batch, dtype=torch.float64, device=found.device)
        if len(found):
            u, sizes, back_t = torch.linalg.svd(rest_first)
            back = back_t[:left].T
            outside = two.right @ torch.linalg.svd(rest_second)[2][: two.rank - len(found)].T
            unit = None if rest_bias is None else (u[:, :left].T @ rest_bias) / sizes[:left]
            problem = SpanProblem.of(seen_inside @ back, layer.bias, pair.between, outside, unit)
        if max(one.tail, two.tail) < CLEAN:
            problem = problem.thinned(max(FEWEST_UNITS, UNITS_EACH * left), rng)
        roots = find_roots(
            problem,
            left,
            scale=scale * SCALES[peel % len(SCALES)],
            tolerance=tolerance if not len(found) else max(tolerance, 5e-3),
            rng=rng,
            starts=min(effort.starts, STARTS_EACH * left),
            rounds=effort.rounds,
        )
        if not len(roots):
            continue
        y, residual = descend(whole, whole.y(roots @ back.T), 8, weighted=False)
        for index in residual.argsort().tolist():
            q = whole.q(y[index])
            if float(residual[index]) > tolerance or is_known(q, found) or len(found) == basis.batch:
                continue
            s, t, activation = backward_pair(pair, basis, q, whole.z(y[index]))
            found = torch.cat([found, q[None]])
            deltas.append(one.left @ s)
            rest_first = rest_first - s[:, None] * q
            rest_second = rest_second - t[:, None] * (two.right.T @ activation)
            rest_bias = None if rest_bias is None else rest_bias - s
    residual = whole.residual(found) if len(found) else found.new_zeros(0)
    delta = torch.stack(deltas) if deltas else found.new_zeros(0, len(layer.weight))
    return Recovered(basis.batch, found @ one.right.T, residual, delta, tolerance, (one.tail, two.tail))


def backward_pair(pair: Pair, basis: Basis, q: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For a sample q (B,) with first-layer values z (m,): its delta1 and delta2 in the bases of the gradients' columns,
    and its activations (m,).
    """
    one = basis.first
    pulled = pair.between.pull(z, basis.pulled)
    null = torch.linalg.svd(torch.cat([one.left, -pulled], 1), full_matrices=False)[2][-1]
    s, t = null[: one.rank], null[one.rank :]
    scale = 1 / ((s / one.sizes) @ q)
    return scale * s, scale * t, pair.between.value(z[None])[0]
