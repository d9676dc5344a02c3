"""Metrics for images rebuilt from embeddings: whether each is recognised among all, and the variance explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.intervals import SAMPLES
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.metric import Measured, Metric
from fedspill.trace import Truth


@final
@dataclass(frozen=True)
class ImagesRecognised(Metric[RebuiltImages]):
    """Share of rebuilt images that are more like their own original than like any other one, by correlation.

    Brightness and contrast do not count. Guessing, which has the same picture for all of them, gets one right.
    """

    name: ClassVar[str] = "images-recognised"
    title: ClassVar[str] = "Rebuilt images that are recognised among all"
    paper: ClassVar[str] = "fedspill"
    guesses = RebuiltImages
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: RebuiltImages, truth: Truth) -> Measured:
        said, real = _both(guess, truth)
        if len(real) < 2:
            raise NotScored("an image is recognised among several, and there is one")
        right = ((_unit(said) @ _unit(real).T).argmax(1) == torch.arange(len(real))).double()
        chance = torch.full_like(right, 1 / len(right))
        return Measured(right, chance, torch.ones(len(right), dtype=torch.int64), None, SAMPLES)


@final
@dataclass(frozen=True)
class ImageVariance(Metric[RebuiltImages]):
    """Share of the pixels' variance that the rebuilt images explain (R2); the mean image explains nothing of it."""

    name: ClassVar[str] = "images-r2"
    title: ClassVar[str] = "Variance of the client's images explained"
    paper: ClassVar[str] = "Pasquini et al. 2021, as mean square errors"
    guesses = RebuiltImages
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: RebuiltImages, truth: Truth) -> Measured:
        said, real = _both(guess, truth)
        whole = (real - real.mean(0)).square().sum(1).mean()
        if not float(whole) > 0:
            raise NotScored("all images are alike: there is no variance to explain")
        values = 1 - (said - real).square().sum(1) / whole
        return Measured(values, torch.zeros_like(values), None, None, SAMPLES)


def _both(guess: RebuiltImages, truth: Truth) -> tuple[Tensor, Tensor]:
    """(images, pixels) as guessed, and as they are."""
    real = []
    for origin, images in zip(guess.of, guess.images, strict=True):
        if not truth.has(origin, "inputs"):
            raise NotScored("the client's images are not at hand")
        whole = truth.get(origin, "inputs").flatten(1).double()
        if len(images) > len(whole) or images.shape[1] != whole.shape[1]:
            raise NotScored(f"round {origin.round} has {len(whole)} images, the guess speaks of others")
        real.append(whole[: len(images)])
    return torch.cat([images.double() for images in guess.images]), torch.cat(real)


def _unit(rows: Tensor) -> Tensor:
    """Rows (n, pixels) about 0, at length 1; a row of one value stays 0."""
    centred = rows - rows.mean(1, keepdim=True)
    found: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return found
