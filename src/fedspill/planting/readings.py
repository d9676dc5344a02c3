"""What is read of a first layer's gradient: single rows, and differences of rows that differ in their thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 3e-7  # of the largest bias gradient: a reading below is rounding
_PARALLEL = 1e-5  # distance of unit vectors of which one is the other, rounded


@dataclass(frozen=True, eq=False)
class Readings:
    """Row `rows[i]`, less `share[i]` of row `less[i]`; share is 0 where a row is read by itself.

    `along` says which readings are by rows of one direction, that is, by the same number of a sample.
    """

    rows: Tensor
    less: Tensor
    share: Tensor
    along: Tensor

    def at(self, places: Tensor) -> Readings:
        """Some of them."""
        return Readings(self.rows[places], self.less[places], self.share[places], self.along[places])

    def of(self, values: Tensor) -> Tensor:
        """The readings (readings, ...) of something that each row has, (rows, ...)."""
        share = self.share.reshape(-1, *(1,) * (values.ndim - 1))
        return values[self.rows] - share * values[self.less]


@torch.no_grad()
def readings_of(weight: Tensor, bias: Tensor, second: Tensor) -> Readings:
    """What to read, seen from the planted layer itself: rows of one direction are read by differences of neighbours.

    weight (rows, features), bias (rows,); second (units, rows) is the next layer, whose columns say how much more a row
    gets back than its neighbour. Rows without weights are left out.
    """
    sizes = weight.norm(dim=1)
    live = (sizes > 0).nonzero().flatten()
    unit, height = weight[live] / sizes[live, None], bias[live] / sizes[live]
    # Rows of one direction have equal numbers along any other; that sorts them together, by height among themselves.
    mark = unit @ torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device).cos()
    group = torch.zeros_like(live)
    by_mark = mark.argsort()
    if len(live) > 1:
        apart = (unit[by_mark][1:] - unit[by_mark][:-1]).norm(dim=1) > _PARALLEL
        group[by_mark[1:]] = apart.long().cumsum(0)
    by_height = height.argsort(descending=True, stable=True)
    order = by_height[group[by_height].argsort(stable=True)]
    rows, of = live[order], group[order]
    less, share = rows.clone(), weight.new_zeros(len(rows))
    if len(rows) > 1:
        paired = of[1:] == of[:-1]
        less[:-1][paired] = rows[1:][paired]
        columns = second.norm(dim=0)
        factor = columns[rows[:-1]] / columns[rows[1:]].clamp_min(1e-300)
        share[:-1] = torch.where(paired, factor, torch.zeros_like(factor))
    return Readings(rows, less, share, of)


def quotients(readings: Readings, weight_gradient: Tensor, bias_gradient: Tensor) -> tuple[Tensor, Tensor]:
    """What each reading holds, as (readings, features), and which readings (readings,) are not empty."""
    whole, part = readings.of(weight_gradient), readings.of(bias_gradient)
    filled = part.abs() > FLOOR * bias_gradient.abs().max()
    safe = torch.where(filled, part, torch.ones_like(part))
    return whole / safe[:, None], filled


def rows_alone(rows: int) -> Readings:
    """Every row read by itself."""
    every = torch.arange(rows)
    return Readings(every, every, torch.zeros(rows, dtype=torch.float64), every)
