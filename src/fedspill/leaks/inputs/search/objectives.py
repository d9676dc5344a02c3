"""How far the gradients of a candidate are from those observed: what reconstruction minimises."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor


class GradientDistance(ABC):
    """A distance between gradient lists; candidate tensors (R, *parameter), observed ones (*parameter)."""

    @abstractmethod
    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        """(R,) the distance of each restart."""

    def against(self, observed: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
        """The distance to these; what depends on them alone is worked out once."""
        return lambda candidate: self(candidate, observed)


@final
@dataclass(frozen=True)
class SquaredDistance(GradientDistance):
    """Sum of squared differences, as DLG (Zhu et al. 2019); `relative` divides by the observed squares."""

    relative: bool = False
    per_tensor: bool = False  # each tensor relative to its own norm, then the mean

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        distances = torch.stack([_squares(g - seen) for g, seen in zip(candidate, observed, strict=True)])
        if self.per_tensor:
            sizes = torch.stack([seen.square().sum() for seen in observed]).clamp_min(1e-30)
            return (distances / sizes[:, None]).mean(0)
        if self.relative:
            return distances.sum(0) / torch.stack([seen.square().sum() for seen in observed]).sum().clamp_min(1e-30)
        return distances.sum(0)


@final
@dataclass(frozen=True)
class LayeredSquares(GradientDistance):
    """Squares, each layer's with 1/e of the weight of the one before, times a factor (Dimitrov et al. 2022)."""

    factor: float = 1.0

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        distances, layer = [], 0
        for g, seen in zip(candidate, observed, strict=True):
            layer += seen.ndim > 1  # a bias belongs to the layer whose weight comes before it
            distances.append(math.exp(1 - max(layer, 1)) * _squares(g - seen))
        return self.factor * torch.stack(distances).sum(0)


@final
@dataclass(frozen=True)
class TensorNorms(GradientDistance):
    """Sum over tensors of the norm of the difference, not squared, over that of what was observed (GradInversion 2021).

    A tensor that is nearly explained still counts by its norm; squares would give it next to no weight.
    """

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        apart = torch.stack([(_squares(g - seen) + 1e-20).sqrt() for g, seen in zip(candidate, observed, strict=True)])
        return apart.sum(0) / torch.stack([seen.norm() for seen in observed]).sum().clamp_min(1e-30)


@final
@dataclass(frozen=True)
class CosineDistance(GradientDistance):
    """One minus the cosine of the angle between gradients, as Inverting Gradients (Geiping et al. 2020)."""

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        products = torch.stack([_rows(g) @ seen.flatten() for g, seen in zip(candidate, observed, strict=True)])
        own = torch.stack([_squares(g) for g in candidate])
        theirs = torch.stack([seen.square().sum() for seen in observed])[:, None]
        return 1 - products.sum(0) / (own.sum(0) * theirs.sum(0)).clamp_min(1e-30).sqrt()

    def against(self, observed: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
        """On a GPU tensors are joined to a few vectors, since kernels cost more than copies there."""
        return joined_cosine(observed) if observed[0].is_cuda else super().against(observed)


@final
@dataclass(frozen=True)
class TensorCosines(GradientDistance):
    """One minus the mean over tensors of the cosine, as LAMP (Balunovic et al. 2022)."""

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        found = []
        for g, seen in zip(candidate, observed, strict=True):
            size = (_squares(g) * seen.square().sum()).clamp_min(1e-30).sqrt()
            found.append(_rows(g * seen).sum(1) / size)
        return 1 - torch.stack(found).mean(0)


@final
@dataclass(frozen=True)
class NormsAndSums(GradientDistance):
    """Norms of the differences, and `share` of the sums of their absolute values, as TAG (Deng et al. 2021)."""

    share: float = 0.01

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        apart = [g - seen for g, seen in zip(candidate, observed, strict=True)]
        norms = torch.stack([(_squares(part) + 1e-20).sqrt() for part in apart]).sum(0)
        return norms + self.share * torch.stack([_rows(part).abs().sum(1) for part in apart]).sum(0)


@final
@dataclass(frozen=True)
class GaussianKernel(GradientDistance):
    """Sum over tensors of Q * (1 - exp(-|difference|^2 / sigma^2)), as SAPAG (Wang et al. 2020).

    The kernel's width is the variance of the observed tensor, as CAFE's released code has it, or of all observed values
    (`whole`), times `width`.
    """

    whole: bool = False
    per_entry: bool = False  # the mean square instead of the sum: the exponent is of order 1 for large tensors too
    width: float = 1.0

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        everything = torch.cat([seen.flatten() for seen in observed]).var() if self.whole else None
        total = torch.zeros(len(candidate[0]), dtype=candidate[0].dtype, device=candidate[0].device)
        for g, seen in zip(candidate, observed, strict=True):
            variance = everything if everything is not None else seen.var() if seen.numel() > 1 else seen.square().sum()
            apart = _squares(g - seen) / (seen.numel() if self.per_entry else 1)
            total = total + (1 - torch.exp(-apart / (self.width * variance).clamp_min(1e-30)))
        return total


def joined_cosine(observed: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
    """The distance to these by a few long vectors."""
    groups = alike_in_size([seen.numel() for seen in observed])
    joined = [torch.cat([observed[index].flatten() for index in group]) for group in groups]
    theirs = torch.stack([seen.square().sum() for seen in joined]).sum()

    def distance(candidate: Sequence[Tensor]) -> Tensor:
        own = [torch.cat([_rows(candidate[index]) for index in group], 1) for group in groups]
        sums = [_Sums.apply(*pair) for pair in zip(own, joined, strict=True)]  # type: ignore[no-untyped-call]
        products, squares = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
        return 1 - products / (squares * theirs).clamp_min(1e-30).sqrt()

    return distance


def alike_in_size(sizes: Sequence[int]) -> list[list[int]]:
    """Which tensors are joined: for each as many threads are launched as for the largest, and most must find work."""
    groups: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        grown = [*groups[-1], index] if groups else []
        if grown and sizes[grown[0]] * len(grown) <= 2 * sum(sizes[one] for one in grown):
            groups[-1] = grown
        else:
            groups.append([index])
    return groups


@final
class _Sums(torch.autograd.Function):
    """Products of rows (R, n) with a vector (n,), and sums of their squares; both slopes by one kernel each."""

    @staticmethod
    def forward(rows: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        return rows @ vector, torch.linalg.vector_norm(rows, dim=1).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_product: Tensor, by_squares: Tensor) -> tuple[Tensor, None]:
        rows, vector = ctx.saved_tensors
        return torch.addcmul(by_product[:, None] * vector, rows, 2 * by_squares[:, None]), None


def _squares(tensor: Tensor) -> Tensor:
    """(R,) sums of squares."""
    return _rows(tensor).square().sum(1)


def _rows(tensor: Tensor) -> Tensor:
    """(R, n) of (R, *parameter), which may be a single number each."""
    return tensor.reshape(len(tensor), -1)
