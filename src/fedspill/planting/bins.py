"""Bins: rows of the first layer that sort a batch by a few numbers, so that neighbours differ by one sample's gradient.

Robbing the Fed (Fowl et al. 2022) sorts by one number: a row for each threshold, all rows alike but for their biases.
The gradients of two neighbouring rows differ by the samples that fall between their thresholds, and where that is one,
the quotient of weight and bias gradient is the sample. Two samples in one bin are lost.

With several numbers, unlike one another, a sample that shares a bin in one of them may be alone in another. Once found
there it is taken out everywhere, which frees others: an invertible Bloom table. With three numbers nearly every sample
of a batch of 0.6 samples a row is found that way (peel.py reads it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.planting.first_layer import PlantedLayer
from fedspill.planting.input_packing import InputPacking
from fedspill.training import Tensors

Norms: TypeAlias = Literal["small", "usual"]
BELOW = 3.0  # deviations by which the lowest threshold lies below all that the server has: every sample has a bin
# Deviation of the law around a height, and points that stand for it. Of 0.05, 0.1 and 0.2 of a deviation, 0.1 leaves as
# many samples alone as theory says (MNIST, CIFAR-10; 256 and 1,024 bins, 2,000 images at hand, seeds 69000 to 69011).
_BLUR, _SPREAD = 0.1, 16
_EMPTY = 1e-6  # variance, of the largest, below which a direction counts as constant


@dataclass(frozen=True)
class BinDesign:
    """How many numbers samples are sorted by, and how large the planted weights are."""

    functionals: int = 3
    rank: int = 60  # principal components that the numbers are made of
    gain: float = 1.0  # of the rows: small ones resolve better in an update, which is a difference of rounded weights
    head: float = 0.02  # size of the next layer's columns, times the number of rows
    norms: Norms = "small"  # "usual": rows and columns are as large as those that they replace


def functionals(known: Tensor, many: int, rank: int, rng: torch.Generator) -> Tensor:
    """(many, columns) directions along which `known` (n, columns) varies by 1, uncorrelated with each other.

    They are made of the largest principal components, and are orthogonal to the mean there: thresholds are then small,
    and float32 biases round less.
    """
    data = known.double()
    centre = data.mean(0)
    rank = max(min(rank, len(data) // 4, data.shape[1] - 1), many + 1)
    _, sizes, vectors = torch.linalg.svd(_few(data - centre, 4 * rank + 400), full_matrices=False)
    variances = sizes.square()
    kept = min(rank, int((variances > _EMPTY * variances[0]).sum()))
    if kept <= many:
        raise NotApplicable(f"The inputs at hand vary in {kept} directions, too few to sort samples by {many} numbers.")
    vectors = vectors[:kept]
    spreads = ((data - centre) @ vectors.T).std(0)
    mean = (vectors @ centre) / spreads
    random = torch.randn(kept, many, generator=rng, dtype=torch.float64)
    mixed = torch.linalg.qr(torch.cat([mean[:, None], random], 1))[0][:, 1:]
    along: Tensor = (mixed / spreads[:, None]).T @ vectors
    return along


def _few(data: Tensor, most: int) -> Tensor:
    """At most so many rows, evenly taken: the directions of a few hundred samples are those of thousands."""
    return data[:: max(1, len(data) // most)]


def bins_of(known: Tensor, rows: int, design: BinDesign, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(rows, columns) weights and (rows,) biases: an equal share of `known` lies between neighbouring thresholds."""
    each = rows // design.functionals
    if each < 2:
        raise NotApplicable(f"{rows} rows are too few for bins by {design.functionals} numbers.")
    along = functionals(known, design.functionals, design.rank, rng)
    heights = known.double() @ along.T
    thresholds = _even_thresholds(_few(heights, 20_000), each).T  # (functionals, each - 1)
    thresholds = torch.cat([heights.amin(0)[:, None] - BELOW, thresholds], 1)
    return design.gain * along.repeat_interleave(each, 0), -design.gain * thresholds.reshape(-1)


def _even_thresholds(heights: Tensor, many: int) -> Tensor:
    """(many - 1, numbers) between which equal shares of inputs like those of `heights` (n, numbers) fall.

    Every height stands for a narrow normal law around it. Otherwise, where there are about as many bins as heights,
    some bins are much wider than others, and more samples share theirs.
    """
    places = (torch.arange(_SPREAD, dtype=torch.float64) + 0.5) / _SPREAD
    around = _BLUR * torch.special.ndtri(places)[:, None] * heights.std(0)
    spread = (heights[:, None] + around).flatten(0, 1).sort(0).values
    even: Tensor = spread[(torch.arange(1, many) * len(spread)) // many]
    return even


@torch.no_grad()
def plant_bins(
    layer: PlantedLayer,
    state: Tensors,
    known: Tensor,
    design: BinDesign,
    rng: torch.Generator,
    packings: Sequence[InputPacking],
    rows: Tensor | None = None,
) -> Tensors:
    """The state with bins in its first layer, made for inputs like `known` (n, inputs).

    `packings` say where inputs lie among the layer's features: in one place, or in one for each client that is to be
    told apart. All columns of the next layer are made alike, so that every row gets the same back from a sample. `rows`
    are those to use (all by default); rows that are left over are silenced, or stay where norms are to be usual.
    """
    planted = {name: tensor.clone() for name, tensor in state.items()}
    weight, bias, second = planted[layer.weight], planted[layer.bias], planted[layer.second_weight]
    places = torch.arange(len(weight)) if rows is None else rows
    w, b = bins_of(known, len(places), design, rng)
    used, many = places[: len(w)], len(w) // design.functionals
    usual = torch.cat([weight, bias[:, None]], 1).norm(dim=1).median()
    columns = second.norm(dim=0).median()
    if design.norms == "usual":  # one factor for a functional: its rows stay comparable
        sizes = torch.cat([w, b[:, None]], 1).norm(dim=1).reshape(design.functionals, many).amax(1)
        factor = (float(usual) / sizes).repeat_interleave(many)
        w, b = w * factor[:, None], b * factor
    else:
        silence(planted, layer, design.gain)
    place_rows(weight, bias, used, w, b, packings)
    back = generic_column(len(second), rng).to(second)
    back = back * (columns / back.norm() if design.norms == "usual" else design.head / len(weight))
    second.copy_(back[:, None].expand_as(second))
    return planted


@torch.no_grad()
def silence(state: Tensors, layer: PlantedLayer, gain: float = 1.0) -> None:
    """Makes every row of the first layer one that no sample wakes: such a client sends nothing of its samples."""
    state[layer.weight].zero_()
    state[layer.bias].fill_(-gain)


@torch.no_grad()
def place_rows(
    weight: Tensor, bias: Tensor, used: Tensor, w: Tensor, b: Tensor, packings: Sequence[InputPacking]
) -> None:
    """Writes rows for inputs (rows, inputs) where these lie among the layer's features; `used` (rows,) says which."""
    weight[used] = 0
    for packing in packings:
        weight[used[:, None], packing.places] = w.to(weight)
    bias[used] = (b - packings[0].shift * w.sum(1)).to(bias)


def generic_column(units: int, rng: torch.Generator) -> Tensor:
    """(units,) weights of which no two, and no sum of two, are alike, half of them negative: labels can be told."""
    sides = torch.arange(units) % 2 * 2 - 1
    return torch.randn(units, generator=rng, dtype=torch.float64) + 3.0 * sides
