"""The row space of a linear layer's gradient: every input of that layer lies in it, unless they are too many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

# Dimensions that must stay free for a test to mean anything. One of them is the mean, which LayerNorm takes away; by
# the others a wrong input passes a tolerance of a thousandth once in 10^12 times.
SPARE = 5
_LEAST = 8  # the smallest rank that is believed without a gap near rounding
_ROUNDING = 2.0**-24  # of float32
_FAR = 1e3  # times rounding
_EDGE = 1.03  # times the largest singular value of noise (Marchenko and Pastur 1967): what chance adds to it
_HIGH = 1e2  # the same of a few more inputs than dimensions, whose weakest directions are weak


@dataclass(frozen=True, eq=False)
class RowSpace:
    """Some of the leading directions of a gradient's rows."""

    basis: Tensor  # (width, rank) orthonormal, float64
    width: int

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def free(self) -> int:
        return self.width - self.rank

    @property
    def level(self) -> float:
        """The distance of a random vector of length 1."""
        return math.sqrt(max(self.free, 0) / self.width)

    def distance(self, inputs: Tensor) -> Tensor:
        """(n,) how far each of inputs (n, width) lies from the space, of its length, in float64."""
        rows = inputs.to(self.basis)
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        far: Tensor = (rows @ self._rest).norm(dim=-1)
        return far

    @cached_property
    def _rest(self) -> Tensor:
        """(width, free) an orthonormal basis of all directions outside."""
        rest: Tensor = torch.linalg.qr(self.basis, mode="complete")[0][:, self.rank :].contiguous()
        return rest

    def outside(self, many: int, rng: torch.Generator, beside: Tensor | None = None) -> Tensor:
        """(width, at most many) random orthonormal directions that are orthogonal to the space, and to `beside`."""
        base = self.basis if beside is None else torch.cat([self.basis, beside.to(self.basis)[:, None]], 1)
        fill = torch.randn(self.width, min(many, self.width - base.shape[1]), generator=rng, dtype=torch.float64)
        q: Tensor = torch.linalg.qr(torch.cat([base, fill.to(base)], 1))[0]
        return q[:, base.shape[1] :]


def whitened(gradient: Tensor, weight: Tensor, kept: float, added: float = 0.0) -> Tensor:
    """(rows, width) the rows of a gradient, each in units of its own rounding, in float64; rows of zeros are left out.

    Rows of queries and keys are far smaller than those of values, but lie as high above their rounding. Where the
    gradient was had by subtracting weights, these are rounded too: `kept` is what a unit of weight is then worth.
    Noise that was `added` to every number, by its standard deviation, counts as rounding does.
    """
    rows = gradient.double()
    sizes = rows.norm(dim=1)
    noise = rounding(gradient, weight, kept)
    noise = torch.hypot(noise, torch.full_like(noise, added * rows.shape[1] ** 0.5))
    moved = sizes > sizes.max() * 1e-14
    scaled: Tensor = rows[moved] / noise[moved, None]
    return scaled


def rounding(gradient: Tensor, weight: Tensor, kept: float) -> Tensor:
    """(rows,) how long the rounding of each row may be; see whitened."""
    sizes = torch.hypot(gradient.double().norm(dim=1), kept * weight.detach().double().norm(dim=1))
    return _ROUNDING * sizes


@torch.no_grad()
def noise_behind(norm: nn.LayerNorm, gradient: Tensor, of_bias: Tensor, rounded: Tensor) -> float:
    """The standard deviation of noise on each number of the gradient (outputs, width) of a layer that reads this norm.

    It is 0 where the rounding of the rows, `rounded` (outputs,), explains it. A LayerNorm hands on what is centred,
    times its scale, plus its shift. So the rows of that gradient, divided by the scale, sum up to what the gradient of
    the bias says, whatever was read: what is off is noise.
    """
    scale, shift = norm.weight.double(), norm.bias.double()
    if float(scale.abs().min()) < 1e-2 * float(scale.abs().max()):
        return 0.0
    off = (gradient.double() / scale).sum(1) - (shift / scale).sum() * of_bias.double()
    per_number = scale.reciprocal().square().sum() + (shift / scale).sum().square()
    found = float((off.square().mean() / per_number).sqrt())
    return found if found > _HIGH * float((rounded.square().mean() / gradient.shape[1]).sqrt()) else 0.0


def as_sent(gradient: Tensor) -> Tensor:
    """(rows, width) the rows of a gradient with the lengths that they have, in units of the largest one's rounding."""
    rows = gradient.double()
    scaled: Tensor = rows / (_ROUNDING * rows.norm(dim=1).max()).clamp_min(1e-300)
    return scaled


def singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) singular values and (k, width) directions of rows (n, width), in float64.

    Small matrices are taken apart on the processor: a GPU takes seconds for it, or does not converge.
    """
    small = torch.linalg.qr(rows, mode="r")[1] if rows.shape[0] > rows.shape[1] else rows
    _, values, directions = torch.linalg.svd(small.cpu(), full_matrices=False)
    return values.to(rows.device), directions.to(rows.device)


@dataclass(frozen=True, eq=False)
class RowSpaces:
    """The space of some rows at each rank that may be the right one, the likeliest first."""

    likely: list[RowSpace]
    full: bool  # whether all directions are far above rounding: too many inputs, or noise
    floor: float = 0.0  # how far above rounding the weakest direction is, where there are as many as dimensions

    @property
    def crowded(self) -> bool:
        """Whether too few directions are left to test an input by, as with a few more inputs than dimensions."""
        return self.full or self.floor > _HIGH or bool(self.likely and self.likely[0].free < SPARE)


def row_spaces(rows: Tensor, *, noisy: bool = False) -> RowSpaces:
    """The space of whitened rows (outputs, width) at each rank that may be the right one, the likeliest first.

    The likeliest rank is at the widest gap near rounding. Where local steps let the inputs drift or noise was added
    there is no such gap: then at the widest one above, and where noise of that size would end. Of rows in units of
    noise (`noisy`) no direction is believed that noise alone would have.
    """
    if not len(rows) or not bool(torch.isfinite(rows).all()):
        return RowSpaces([], False)
    values, directions = singular(rows)
    outputs, width = rows.shape
    ranks = likely_ranks(values, outputs, width)
    if noisy:
        above = int((values > _EDGE * (1 + (outputs / width) ** 0.5)).sum())
        ranks = [rank for rank in dict.fromkeys((*ranks, above)) if 0 < rank <= above]
    likely = [RowSpace(directions[:rank].T.contiguous(), width) for rank in ranks]
    # The last two may be missing: LayerNorm takes the mean away, and a shift adds one.
    whole = len(values) == width and width > 3
    floor = float(values[-3]) / (1 + (outputs / width) ** 0.5) if whole else 0.0
    return RowSpaces(likely, floor > _FAR, floor)


def likely_ranks(values: Tensor, outputs: int, width: int) -> list[int]:
    """Numbers of singular values (falling, in units of rounding) that may be signal, the likeliest first, each once."""
    many = len(values)
    if many < width:  # fewer rows than dimensions: nothing shows the floor but float32 itself
        floor = 1 + (outputs / width) ** 0.5
        return [max(1, int((values > 6 * floor).sum()))]
    if many < 4:
        return [many]
    ratio = values[:-1] / values[1:].clamp_min(1e-300)
    floor = max(1 + (outputs / width) ** 0.5, float(values[-3]))
    near = ratio.clone()
    near[(values[1:] > 60 * floor) | (values[:-1] < 2 * floor)] = 0
    place = int(near[:-1].argmax())
    first = place + 1 if near[place] > 4 else max(1, int((values > 6 * floor).sum()))
    least = min(_LEAST, many - 4)
    widest = least + int(ratio[least:-2].argmax()) + 1
    found = dict.fromkeys((first, widest, _above_noise(values, outputs, width)))
    return [rank for rank in found if 0 < rank <= width]


def _above_noise(values: Tensor, outputs: int, width: int) -> int:
    """Singular values above those of pure noise (Marchenko and Pastur 1967), its size read off the lower quarter."""
    low, high = abs(outputs**0.5 - width**0.5), outputs**0.5 + width**0.5
    quarter = low + 0.25 * (high - low)
    scale = float(values[int(0.75 * width)]) / max(quarter, 1e-9)
    return max(1, int((values > 1.15 * high * scale).sum()))
