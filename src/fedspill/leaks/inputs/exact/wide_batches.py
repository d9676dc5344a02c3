"""Samples of a batch that fills much of a layer: the conditions of several layers, by moves on some of their equations.

From a quarter of the units on, the span condition (sample_roots.py) has hardly more equations than unknowns, and nearly
all searches end in false minima. Two things lead past them. What further layers are fed lies in the row spaces of their
gradients too, which gives as many equations again in the same unknowns. And each move is made on a share of the
equations, drawn anew: a sample fulfils any of them, while a false minimum of all is none of most parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.between_layers import Elementwise, map_between_layers
from fedspill.leaks.inputs.exact.certificate import sent_back
from fedspill.leaks.inputs.exact.gradient_rank import CLEAR, leading_directions
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, LinearLayer, linear_layer, module_chain
from fedspill.leaks.inputs.exact.reckoned_time import MULTIPLICATION, VALUE, TimeLeft
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, is_known

# Of 64 starts for 80 samples of 200 units all equations led 12 to a sample, this share 51, half of them 46.
SHARE = 0.7
EACH = 2.0  # equations in a move for each unknown: layers are added until there are so many
STARTS, MOVES = 32, 300
LOOK = 10  # moves between looks at which starts have arrived
ARRIVED = 1e-3  # share of what random starts miss that a start which is at a sample may miss
ENOUGH = 0.25  # of the starts: taking what they found out makes the rest easier than going on
POLISH = 12  # moves on all equations
LEAST_DAMPING = 1e-3  # of moves on some equations, which would else follow what is open in them


@dataclass(frozen=True, eq=False)
class FurtherLayer:
    """A linear layer behind the first, the map behind it, and where what that map puts out must lie."""

    layer: LinearLayer
    between: Elementwise
    row_space: Tensor  # (m, r) of the gradient of the next linear layer, orthonormal


@dataclass(frozen=True, eq=False)
class SentDown:
    """What a sample sends back to both layers of the pair, (m,) and (m2,)."""

    first: Tensor
    second: Tensor
    outside: float  # share of the first that the gradient's columns do not hold


@dataclass(frozen=True, eq=False)
class NetworkAbove:
    """What lies above the first layer of a pair: further layers' conditions, and what is sent back through them."""

    model: nn.Module
    pair: LayerPair
    further: tuple[FurtherLayer, ...]

    def sent_down(self, z: Tensor, column_space: Tensor) -> SentDown:
        """By a sample with first-layer values z (m,), under the label for which the columns (m, r) of the first layer's
        gradient hold it best.
        """
        second = self.pair.second
        fed = self.pair.between.value(z[None]) @ second.weight.T + (0 if second.bias is None else second.bias)
        names = (layer.weight_name.rpartition(".")[0] for layer in (self.pair.first, second))
        one, two = (sent_back(self.model, name, at)[0] for name, at in zip(names, (z[None], fed), strict=True))
        missed = (one - (one @ column_space) @ column_space.T).norm(dim=1) / one.norm(dim=1).clamp_min(1e-300)
        label = int(missed.argmin())
        return SentDown(one[label], two[label], float(missed[label]))


def network_above(
    model: nn.Module, pair: LayerPair, gradients: Mapping[str, Tensor], samples: int, rng: torch.Generator
) -> NetworkAbove:
    """Further layers as far as each next one's gradient clearly has a direction for each sample."""
    chain = module_chain(model)
    places = [place for place, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)]
    names = [f"{chain[place][0]}.weight" for place in places]
    start, found = names.index(pair.second.weight_name), list[FurtherLayer]()
    for here, there in zip(places[start:], places[start + 1 :], strict=False):
        gradient = gradients.get(f"{chain[there][0]}.weight")
        if gradient is None or min(gradient.shape) <= samples:
            break
        try:
            between = map_between_layers([module for _, module in chain[here + 1 : there]], mixing=True)
        except CannotRecover:
            break
        fed = leading_directions(gradient.double(), samples, rng)
        if not isinstance(between, Elementwise) or not 0 < CLEAR * fed.tail < 1:
            break
        found.append(FurtherLayer(linear_layer(*chain[here]), between, fed.right))
    return NetworkAbove(model, pair, tuple(found))


def is_wide(condition: SpanCondition) -> bool:
    """Whether a share of the condition's equations is too few for its unknowns."""
    units, unknowns = condition.slope.shape
    return (
        isinstance(condition.between, Elementwise) and SHARE * (units - condition.row_space.shape[1]) < EACH * unknowns
    )


@dataclass(frozen=True, eq=False)
class LayeredCondition:
    """The conditions of layers, one behind the other, in the free coordinates of the first."""

    first: SpanCondition
    maps: tuple[Elementwise, ...]
    weights: tuple[Tensor, ...]  # of further layers
    biases: tuple[Tensor | float, ...]
    outside: tuple[Tensor, ...]  # (m, e) what activations must be at right angles to, over what random starts miss

    @staticmethod
    def of(first: SpanCondition, further: Sequence[FurtherLayer], starts: Tensor) -> LayeredCondition:
        """As many layers as it takes; `starts` (R, n) are random points."""
        assert isinstance(first.between, Elementwise)
        maps, weights, biases, outside = (
            [first.between],
            list[Tensor](),
            list[Tensor | float](),
            [_outside(first.row_space)],
        )
        for one in further:
            if SHARE * sum(part.shape[1] for part in outside) >= EACH * starts.shape[1]:
                break
            maps.append(one.between)
            weights.append(one.layer.weight)
            biases.append(0.0 if one.layer.bias is None else one.layer.bias)
            outside.append(_outside(one.row_space))
        condition = LayeredCondition(first, tuple(maps), tuple(weights), tuple(biases), tuple(outside))
        missed = [
            (put @ part).norm(dim=1).median().clamp_min(1e-300)
            for put, part in zip(condition.activations(starts)[1], outside, strict=True)
        ]
        scaled = tuple(part / size for part, size in zip(outside, missed, strict=True))
        return LayeredCondition(first, tuple(maps), tuple(weights), tuple(biases), scaled)

    def activations(self, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What layers put out for points y (R, n), before and after the maps behind them."""
        before, after = [self.first.z(y)], list[Tensor]()
        for place, between in enumerate(self.maps):
            after.append(between.value(before[-1]))
            if place < len(self.weights):
                before.append(after[-1] @ self.weights[place].T + self.biases[place])
        return before, after

    def some(self, share: float, rng: torch.Generator) -> list[Tensor]:
        """A share of each layer's equations."""
        drawn = [torch.randperm(part.shape[1], generator=rng)[: int(share * part.shape[1])] for part in self.outside]
        return [part[:, few.to(part.device)] for part, few in zip(self.outside, drawn, strict=True)]

    def seconds_each(self, share: float) -> float:
        """What one move of one start takes, as reckoned."""
        unknowns = self.first.slope.shape[1]
        spent = VALUE * sum(len(part) for part in self.outside) * unknowns
        for place, part in enumerate(self.outside):
            units, equations = part.shape
            through = self.weights[place - 1].numel() if place else 0
            spent += MULTIPLICATION * unknowns * (through + share * equations * (units + unknowns))
        return spent


def descend_by_turns(
    condition: LayeredCondition,
    y: Tensor,
    moves: int,
    rng: torch.Generator,
    time: TimeLeft,
    *,
    share: float = SHARE,
    weighted: bool = True,
) -> Tensor:
    """(R, n) where Levenberg-Marquardt leads from y (R, n), each move on a share of the equations.

    `weighted`: misses count over the activations' norm, to the power that SpanCondition has.
    """
    power = condition.first.power if weighted else 0.0
    least = LEAST_DAMPING if share < 1 else 1e-10
    damping = torch.full((len(y),), 1e-2, dtype=y.dtype, device=y.device)
    for _ in range(moves):
        time.spend(len(y) * condition.seconds_each(share))
        if time.is_over:
            break
        equations = condition.some(share, rng) if share < 1 else list(condition.outside)
        before, after = condition.activations(y)
        missed = _missed(after, equations)
        size = after[0].square().sum(1).clamp_min(1e-300)
        jacobian = condition.maps[0].jacobian_times(before[0], condition.first.slope)
        growth = (jacobian.transpose(1, 2) @ after[0][:, :, None])[:, :, 0] / size[:, None]
        slopes = [equations[0].T @ jacobian]
        for place, weight in enumerate(condition.weights):
            jacobian = condition.maps[place + 1].slope(before[place + 1])[:, :, None] * (weight @ jacobian)
            slopes.append(equations[place + 1].T @ jacobian)
        slope = torch.cat(slopes, 1) - power * missed[:, :, None] * growth[:, None]
        curvature = slope.transpose(1, 2) @ slope
        uphill = (slope.transpose(1, 2) @ missed[:, :, None])[:, :, 0]
        diagonal = curvature.diagonal(dim1=1, dim2=2).clamp_min(1e-14)
        ridge = damping[:, None] * diagonal + 1e-13 * diagonal.amax(1, keepdim=True)
        tried = y - torch.linalg.solve_ex(curvature + torch.diag_embed(ridge), uphill)[0]
        then = condition.activations(tried)[1]
        new = _missed(then, equations).square().sum(1) * then[0].square().sum(1).clamp_min(1e-300) ** -power
        better = (new < missed.square().sum(1) * size**-power) & new.isfinite()
        y = torch.where(better[:, None], tried, y)
        damping = torch.where(better, damping * 0.2, damping * 5).clamp(least, 1e8)
    return y


def find_wide_roots(
    condition: SpanCondition,
    further: Sequence[FurtherLayer],
    wanted: int,
    *,
    scale: float,
    rng: torch.Generator,
    spread: Tensor,
    time: TimeLeft,
) -> Tensor:
    """(k, B) distinct roots, at most `wanted`, from one round of starts that goes on until some of them arrive.

    `scale` is the norm of a start; `spread` (B,) are the gradient's singular values along the coordinates.
    """
    size = len(condition.particular)
    q = torch.randn(STARTS, size, generator=rng, dtype=torch.float64).to(spread.device)
    power = torch.rand(STARTS, 1, generator=rng, dtype=torch.float64).to(q)
    q = q * (spread / spread[0]) ** power
    y = condition.y(q * scale / q.norm(dim=1, keepdim=True).clamp_min(1e-12))
    layered = LayeredCondition.of(condition, further, y)
    there = y[:0]
    for _ in range(MOVES // LOOK):
        y = descend_by_turns(layered, y, LOOK, rng, time)
        arrived = _missed(layered.activations(y)[1], layered.outside).norm(dim=1) < ARRIVED
        there, y = torch.cat([there, y[arrived]]), y[~arrived]
        if len(there) >= ENOUGH * STARTS or not len(y) or time.is_over:
            break
    roots = q[:0]
    for one in condition.q(polished(layered, there, rng, time)):
        if not is_known(one, roots):
            roots = torch.cat([roots, one[None]])
    return roots[:wanted]


def polished(condition: LayeredCondition, y: Tensor, rng: torch.Generator, time: TimeLeft) -> Tensor:
    """(k, n) the roots beside y (k, n), in all equations."""
    return descend_by_turns(condition, y, POLISH, rng, time, share=1.0, weighted=False) if len(y) else y


def _outside(row_space: Tensor) -> Tensor:
    """(m, m - r) orthonormal, at right angles to a row space (m, r)."""
    whole: Tensor = torch.linalg.qr(row_space, mode="complete")[0]
    return whole[:, row_space.shape[1] :]


def _missed(activations: Sequence[Tensor], equations: Sequence[Tensor]) -> Tensor:
    """(R, e) what is left of activations (R, m) of each layer outside of their row spaces."""
    return torch.cat([put @ part for put, part in zip(activations, equations, strict=True)], 1)
