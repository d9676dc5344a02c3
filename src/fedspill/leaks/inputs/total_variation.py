"""Total variation of images: how much neighbouring pixels differ, down and across."""

from __future__ import annotations

from torch import Tensor


def neighbour_differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """The differences of neighbours in images (..., height, width): down (..., height - 1, width), and across."""
    return x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]


def total_variation(x: Tensor, rounded_below: float = 0.0) -> Tensor:
    """(n,) the sum of absolute differences of neighbours in images (n, channels, height, width).

    With `rounded_below` differences smaller than that count by their square, so that the sum has no kink at zero.
    """
    down, across = neighbour_differences(x)
    if rounded_below:
        down, across = ((part.square() + rounded_below**2).sqrt() for part in (down, across))
    else:
        down, across = down.abs(), across.abs()
    return down.flatten(1).sum(1) + across.flatten(1).sum(1)
