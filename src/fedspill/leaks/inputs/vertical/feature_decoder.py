"""A first guess at images from the features that a known front makes of them: ridge regression on made-up images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_CHUNK = 250


@dataclass(frozen=True, eq=False)
class FeatureDecoder:
    """x = (h - centre) W + mean, for features h (n, d1) and flattened images x (n, p)."""

    weight: Tensor
    centre: Tensor
    mean: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        return (h - self.centre) @ self.weight + self.mean


def fit_decoder(front: nn.Module, examples: Tensor) -> FeatureDecoder:
    """Fitted on made-up images (m, c, h, w); needs no data of any kind."""
    with torch.no_grad():
        h = torch.cat([front(part) for part in torch.split(examples, _CHUNK)]).double()
    flat = examples.flatten(1).double()
    centre, mean = h.mean(0), flat.mean(0)
    h, flat = h - centre, flat - mean
    gram = h @ h.T  # fewer images than features: the dual system is the small one
    gram.diagonal().add_(1e-4 * gram.diagonal().mean())
    weight = h.T @ torch.linalg.solve(gram, flat)
    return FeatureDecoder(weight.float(), centre.float(), mean.float())


def made_up_images(
    images: int, shape: tuple[int, ...], rng: torch.Generator, device: torch.device | str = "cpu"
) -> Tensor:
    """Random fields with the spectrum of natural images, of random contrast and brightness, in [0, 1]."""
    channels, height, width = shape
    rows, columns = torch.fft.fftfreq(2 * height)[:, None], torch.fft.fftfreq(2 * width)[None]
    frequency = (rows.square() + columns.square()).sqrt()
    frequency[0, 0] = 1 / (2 * max(height, width))
    slope = 0.7 + 1.3 * torch.rand(images, 1, 1, 1, generator=rng)
    noise = torch.randn(images, channels, 2 * height, 2 * width, generator=rng)
    contrast, brightness = (torch.rand(images, 1, 1, 1, generator=rng).to(device) for _ in range(2))
    spectrum = torch.fft.fft2(noise.to(device)) * frequency.to(device) ** (-slope.to(device))
    x = torch.fft.ifft2(spectrum).real[..., :height, :width]
    if channels > 1:  # colours of a picture go together
        x = 0.75 * x.mean(1, keepdim=True) + 0.25 * x
    x = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True).clamp_min(1e-6)
    made: Tensor = (x * (0.1 + 0.4 * contrast) + 1.1 * brightness - 0.3).clamp(0, 1)
    return made
