"""What every model of the zoo refuses: inputs of the wrong shape, sizes below one, rates outside [0, 1)."""

from __future__ import annotations

from fedspill.errors import UsageError


def image_shape(shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    """Channels, height and width of `shape`, which must be an image's."""
    if len(shape) != 3:
        raise UsageError(
            f"The model {model!r} takes images (channels, height, width), but the inputs have the shape {shape}.",
            remedy="Use 'mlp' or 'logistic' for tables.",
        )
    return shape[0], shape[1], shape[2]


def sides_after(sides: tuple[int, int], *, kernel: int, stride: int = 1, padding: int = 0) -> tuple[int, int]:
    """Height and width behind a convolution or a pool."""
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return height, width


def require_pixels(sides: tuple[int, int], shape: tuple[int, ...], model: str) -> tuple[int, int]:
    """The same sides, if anything of an image of that shape is left."""
    if min(sides) < 1:
        raise UsageError(
            f"Images of {shape[1]} x {shape[2]} pixels are too small for {model!r}: nothing is left behind its pools.",
            remedy="Use fewer or smaller layers, or another model.",
        )
    return sides


def require_positive(option: str, *values: int) -> None:
    if any(value < 1 for value in values):
        raise UsageError(f"The option {option!r} takes whole numbers from 1 up, got {_shown(values)}.")


def require_rate(option: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"The option {option!r} takes a rate from 0 up to but not including 1, got {value}.")


def _shown(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(values) == 1 else str(list(values))
