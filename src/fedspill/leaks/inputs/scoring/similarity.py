"""How alike two images are: PSNR, SSIM (Wang et al. 2004), LPIPS (Zhang et al. 2018), and who is matched with whom."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from fedspill.dataset import data_folder
from fedspill.errors import NotScored

CAP = 120.0  # dB; the rounding of float32 hides any difference beyond


@dataclass(frozen=True)
class Range:
    """The values that inputs may take: [0, 1] where the true ones lie in it, else from their least to their largest."""

    low: float
    high: float

    @staticmethod
    def of(real: list[Tensor]) -> Range:
        low = min(float(one.min()) for one in real)
        high = max(float(one.max()) for one in real)
        return Range(0.0, 1.0) if low >= 0 and high <= 1 else Range(low, max(high, low + 1e-6))

    def unit(self, x: Tensor) -> Tensor:
        """x clamped to the range and mapped to [0, 1], in float64."""
        return ((x.double() - self.low) / (self.high - self.low)).clamp(0, 1)


_MATCHES: dict[tuple[bytes, bytes], Tensor] = {}
MOST_MATCHES = 256


def matched(samples: Tensor, real: Tensor) -> Tensor:
    """(n,) for each true sample (n, *shape) the index of the guessed one (k, *shape) matched with it, -1 for none.

    One to one, least total squared error: this is the only place where the truth orders what an attack returned.
    """
    # Every metric asks for the same match, and a large one takes a second: the latest are kept, by what was matched.
    key = (_content(samples), _content(real))
    if key not in _MATCHES:
        _MATCHES[key] = _least_error(samples, real)
        if len(_MATCHES) > MOST_MATCHES:
            del _MATCHES[next(iter(_MATCHES))]
    return _MATCHES[key]


def _content(samples: Tensor) -> bytes:
    return hashlib.sha256(samples.detach().contiguous().numpy().tobytes()).digest() + str(tuple(samples.shape)).encode()


def _least_error(samples: Tensor, real: Tensor) -> Tensor:
    result = torch.full((len(real),), -1, dtype=torch.int64)
    if len(samples):
        error = torch.cdist(samples.flatten(1).double(), real.flatten(1).double()).square()
        rows, columns = linear_sum_assignment(error.numpy())
        result[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return result


def mse(a: Tensor, b: Tensor) -> Tensor:
    """(n,) mean squared error of images (n, ...) in [0, 1]."""
    return (a.double() - b.double()).square().flatten(1).mean(1)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """(n,) peak signal-to-noise ratio in dB, at most CAP."""
    return (-10 * mse(a, b).clamp_min(1e-30).log10()).clamp_max(CAP)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """(n,) structural similarity of images (n, channels, height, width) in [0, 1], mean over channels and places.

    Gaussian window of 11 pixels and deviation 1.5, no padding; smaller images get the largest odd window that fits.
    """
    if a.ndim != 4:
        raise NotScored(f"structural similarity is of images, and inputs have shape {tuple(a.shape[1:])}")
    size = min(11, *a.shape[2:])
    size -= 1 - size % 2
    line = torch.exp(-((torch.arange(size, dtype=torch.float64) - size // 2) ** 2) / (2 * 1.5**2))
    window = (line[:, None] * line / line.sum() ** 2)[None, None]

    def blur(x: Tensor) -> Tensor:
        return functional.conv2d(x.flatten(0, 1)[:, None].double(), window).reshape(*x.shape[:2], -1)

    mean_a, mean_b = blur(a), blur(b)
    variance_a, variance_b = blur(a.double() ** 2) - mean_a**2, blur(b.double() ** 2) - mean_b**2
    together = blur(a.double() * b.double()) - mean_a * mean_b
    first, second = 0.01**2, 0.03**2
    alike = (2 * mean_a * mean_b + first) * (2 * together + second)
    return (alike / ((mean_a**2 + mean_b**2 + first) * (variance_a + variance_b + second))).flatten(1).mean(1)


@torch.no_grad()
def lpips(a: Tensor, b: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """(n,) LPIPS v0.1 with AlexNet features of colour images (n, 3, height, width) in [0, 1]."""
    if a.ndim != 4 or a.shape[1] not in (1, 3):
        raise NotScored(f"LPIPS is of images, and inputs have shape {tuple(a.shape[1:])}")
    features = [_alexnet(x.float().expand(-1, 3, -1, -1), weights) for x in (a, b)]
    total = torch.zeros(len(a))
    for layer, (one, other) in enumerate(zip(*features, strict=True)):
        apart = (_unit_channels(one) - _unit_channels(other)).square()
        total = total + functional.conv2d(apart, weights[f"lin{layer}.weight"]).mean((1, 2, 3))
    return total.double()


@cache
def lpips_weights() -> Mapping[str, Tensor]:
    """AlexNet's convolutions (conv0 to conv4) and the linear layers (lin0 to lin4) of LPIPS, from the data folder."""
    path = data_folder() / Path("lpips/alex.safetensors")
    if not path.is_file():
        raise NotScored(
            f"LPIPS needs pre-trained weights in {path.name} (conv0-4 of AlexNet, lin0-4 of LPIPS v0.1), not found in "
            "the folder lpips of the data folder"
        )
    from safetensors.torch import load_file

    return load_file(path)


def _alexnet(x: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The five rectified feature maps; images under 32 pixels are enlarged to it, which the network's pools need."""
    if min(x.shape[2:]) < 32:
        x = functional.interpolate(x, size=(32, 32), mode="bilinear")
    shift = torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
    x = (2 * x - 1 - shift) / scale
    found = []
    for layer, (stride, padding) in enumerate(((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))):
        if layer in (1, 2):
            x = functional.max_pool2d(x, 3, 2)
        name = f"conv{layer}"
        x = functional.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding).relu()
        found.append(x)
    return found


def _unit_channels(x: Tensor) -> Tensor:
    return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10)
