"""Reads the samples of a batch out of the first layer's gradient, one after the other, each with a certificate.

A reading is a row of the gradient, or the difference of two rows that are alike but for their threshold. Where one
sample is in it, the quotient of its weight and bias part is that sample. What is found is taken out of the gradient,
which leaves others alone in their readings, until nothing more is found.

A sample is vouched for only if (1) its values are possible ones; (2) it does belong into the reading it was found in;
(3) no reading that it must be part of is empty; (4) for some label, the network sends back for it what was read. The
label is the one that fits. Nothing of this uses the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.planting.first_layer import PlantedNetwork
from fedspill.planting.input_packing import InputPacking

# Relative, of what a sample sends back. Differences of float32 sums of 1,000 samples were 1.4e-5 off at most; what a
# row gets by itself 1e-6 in nine of ten cases, and since rows are many, mixtures come by chance as near as 1e-4.
TOLERANCE, TOLERANCE_ALONE = 1e-4, 3e-6
SLACK = 0.02  # of the range of inputs: a value so far outside is no rounding
_FLOOR = 3e-7  # of the largest bias gradient: a reading below is rounding
_PARALLEL = 1e-5  # distance of unit vectors of which one is the other, rounded
_SAME = 1e-3  # of the range, root mean square: two findings that differ by less are one sample, read twice


@dataclass(frozen=True, eq=False)
class Readings:
    """Row `rows[i]`, less `share[i]` of row `less[i]`; share is 0 where a row is read by itself."""

    rows: Tensor
    less: Tensor
    share: Tensor

    def of(self, values: Tensor) -> Tensor:
        """The readings (readings, ...) of something that each row has, (rows, ...)."""
        share = self.share.reshape(-1, *(1,) * (values.ndim - 1))
        return values[self.rows] - share * values[self.less]


@dataclass(frozen=True, eq=False)
class Peeled:
    """The samples that were vouched for, and their labels."""

    samples: Tensor  # (found, *shape)
    labels: Tensor  # (found,)


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
    return Readings(rows, less, share)


def quotients(readings: Readings, weight_gradient: Tensor, bias_gradient: Tensor) -> tuple[Tensor, Tensor]:
    """What each reading holds, as (readings, features), and which readings (readings,) are not empty."""
    whole, part = readings.of(weight_gradient), readings.of(bias_gradient)
    filled = part.abs() > _FLOOR * bias_gradient.abs().max()
    safe = torch.where(filled, part, torch.ones_like(part))
    return whole / safe[:, None], filled


@torch.no_grad()
def peel(
    network: PlantedNetwork,
    packing: InputPacking,
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    samples: int,
    readings: Readings | None = None,
    *,
    labels: Tensor | None = None,
    tolerance: float = TOLERANCE,
    again: bool = True,
) -> Peeled:
    """All samples that can be vouched for in the mean gradient over `samples` of them, in float64.

    weight_gradient (rows, features) and bias_gradient (rows,) are those of the first layer. `labels` are those that the
    batch may have; of very many, one fits a mixture by chance. `tolerance` is for differences of rows; deep networks
    round more. Without `again` only what is alone in a reading at once is found.
    """
    first, second = network.first, network.second
    if readings is None:
        readings = readings_of(first.weight, first.bias, second.weight)
    left, biases = weight_gradient.clone(), bias_gradient.clone()
    floor = _FLOOR * float(biases.abs().max())
    look = torch.ones_like(readings.rows, dtype=torch.bool)
    found: list[Tensor] = []
    classes: list[int] = []
    while len(found) < samples:
        part = readings.of(biases)
        open_ = (look & (part.abs() > floor)).nonzero().flatten()
        look[:] = False
        taken = _vouched(network, packing, readings, left, part, open_, samples, floor, labels, tolerance)
        fresh: list[tuple[Tensor, int]] = []
        for x, label in taken:
            if len(found) + len(fresh) < samples and not known_already(
                x, [*found, *(one for one, _ in fresh)], packing
            ):
                fresh.append((x, label))
        if not fresh:
            break
        found += [x for x, _ in fresh]
        classes += [label for _, label in fresh]
        if not again:
            break
        x = torch.stack([x for x, _ in fresh])
        passed = network.passed(x)
        sent = network.sent(passed, torch.tensor([label for _, label in fresh], device=x.device)) / samples
        left -= sent.T @ passed.features
        biases -= sent.sum(0)
        look = (readings.of(sent.T).abs() > 0).any(1)
    stack = torch.stack(found) if found else left.new_zeros(0, *packing.shape)
    return Peeled(stack, torch.tensor(classes, dtype=torch.int64))


def _vouched(
    network: PlantedNetwork,
    packing: InputPacking,
    readings: Readings,
    left: Tensor,
    part: Tensor,
    places: Tensor,
    samples: int,
    floor: float,
    labels: Tensor | None,
    tolerance: float,
) -> list[tuple[Tensor, int]]:
    """The samples alone in the readings at `places`, with their labels, the best fitting first and each once."""
    some = Readings(readings.rows[places], readings.less[places], readings.share[places])
    features = some.of(left) / part[places, None]
    low, high = packing.low, packing.high
    slack = SLACK * (high - low)
    x = packing.unpack(features)
    flat = x.flatten(1)
    sound = ((flat > low - slack) & (flat < high + slack)).all(1)
    places, x = places[sound], x[sound].clamp(low, high)
    some = Readings(readings.rows[places], readings.less[places], readings.share[places])
    if not len(places):
        return []
    passed = network.passed(x)
    active = (passed.z.detach() > 0).to(left.dtype)  # (n, rows)
    inside = readings.of(active.T) != 0  # (readings, n) which readings each sample is part of
    inside_own = inside[places, torch.arange(len(places), device=places.device)]
    empty = (inside & (part.abs() <= floor)[:, None]).any(0)
    expected = network.sent_by_label(passed, some.rows, some.less, some.share) / samples
    expected = expected if labels is None else expected[:, labels]
    off, label = ((part[places, None] - expected).abs() / expected.abs().clamp_min(1e-300)).min(1)
    label = label if labels is None else labels[label]
    near = off < torch.where(some.share == 0, TOLERANCE_ALONE, tolerance)
    good = (inside_own & ~empty & near).nonzero().flatten()
    taken: list[tuple[Tensor, int]] = []
    seen: dict[bytes, list[Tensor]] = {}
    marks = active.bool().cpu().numpy()
    for index in good[off[good].argsort()].tolist():
        twins = seen.setdefault(marks[index].tobytes(), [])
        if not known_already(x[index], twins, packing):  # else the same sample, found through another reading
            twins.append(x[index])
            taken.append((x[index], int(label[index])))
    return taken


def known_already(x: Tensor, found: list[Tensor], packing: InputPacking, same: float = _SAME) -> bool:
    """Whether a finding is one of those found before, read twice."""
    if not found:
        return False
    apart = (torch.stack(found) - x).flatten(1).square().mean(1).sqrt().min()
    return float(apart) < same * (packing.high - packing.low)


def rows_alone(rows: int) -> Readings:
    """Every row read by itself."""
    every = torch.arange(rows)
    return Readings(every, every, torch.zeros(rows, dtype=torch.float64))
