"""Metrics for recovered inputs: share recovered, PSNR, SSIM, MSE, LPIPS, and how far certificates can be trusted.

Guessed samples are matched one to one with the true ones by least squared error, the truth ordering nothing else. True
samples for which nothing was returned are scored as a grey image. Chance is the best of three guesses without access:
grey, the mean of the class (over all clients' data but the origin's own, which is more than any outsider has), and a
random other sample.
"""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.evidence import Evidence, Images
from fedspill.intervals import CORRELATION, Proof, Scale
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.scoring.chance import baselines
from fedspill.leaks.inputs.scoring.pairs import answered_origins, guess_psnr, matched_guesses, real_inputs
from fedspill.leaks.inputs.scoring.similarity import CAP, Range, lpips, lpips_weights, mse, psnr, ssim
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.trace import Origin, Truth

CLEAR, RECOGNISABLE = 30.0, 20.0  # dB
SHOWN = 8  # images in a report, with --show-data only


class OfPairs(Metric[Inputs], ABC):
    """A value of pairs of images, averaged over an origin's true samples."""

    guesses = Inputs
    higher: ClassVar[bool] = True  # is better

    @abstractmethod
    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        """(n,) from guessed and real (n, *shape) in [0, 1], matched."""

    def measure(self, guess: Inputs, truth: Truth) -> Measured:
        origins = answered_origins(guess)
        real = real_inputs([guess.of[index] for index in origins], truth)
        span = Range.of(real)
        values = [self._value(guess.samples[i], own, span) for i, own in zip(origins, real, strict=True)]
        best = self._best_baseline([guess.of[index] for index in origins], real, truth, span)
        trials = torch.tensor([len(own) for own in real]) if self._is_share else None
        return Measured(torch.stack(values), best, trials, *clusters_of([guess.of[index] for index in origins]))

    _is_share: ClassVar[bool] = False
    ends: ClassVar[Scale | None] = None  # of the quantity, where it has any

    def scale(self, measured: Measured) -> Scale | None:
        return self.ends or super().scale(measured)

    def _value(self, samples: Tensor, real: Tensor, span: Range) -> Tensor:
        """The mean over true samples; of more guesses than samples, the surplus counts against it in a share."""
        pairs = matched_guesses(samples, real, span)
        mean = self.of_pairs(pairs, span.unit(real)).mean()
        return mean * min(1.0, len(real) / max(1, len(samples))) if self._is_share else mean

    def _best_baseline(self, of: list[Origin], real: list[Tensor], truth: Truth, span: Range) -> Tensor:
        """(origins,) what the best guess without access gets."""
        tried = []
        for guesses in baselines(of, real, truth).values():
            tried.append(torch.stack([self._value(g, own, span) for g, own in zip(guesses, real, strict=True)]))
        sign = 1 if self.higher else -1
        return max(tried, key=lambda values: sign * float(values.mean()))


@final
@dataclass(frozen=True)
class InputsRecovered(OfPairs):
    """Share of an origin's samples that came back above 30 dB, matched one to one."""

    name: ClassVar[str] = "inputs-recovered"
    title: ClassVar[str] = "Samples recovered"
    perfect: ClassVar[float] = 1.0
    _is_share: ClassVar[bool] = True

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return (psnr(guessed, real) > CLEAR).double()

    def measure(self, guess: Inputs, truth: Truth) -> Measured:
        return replace(super().measure(guess, truth), proof=_proof(guess, truth))

    def evidence(self, guess: Inputs, truth: Truth, *, private: bool) -> list[Evidence]:
        if not private:
            return []
        index = next((i for i in answered_origins(guess) if len(guess.samples[i])), None)
        if index is None:
            return []
        (real,) = real_inputs([guess.of[index]], truth)
        span = Range.of([real])
        shown = [
            _uris(images)
            for images in (span.unit(real)[:SHOWN], matched_guesses(guess.samples[index], real, span)[:SHOWN])
        ]
        return [Images("Samples of one client and what came back", True, *shown)] if shown[0] else []


@final
@dataclass(frozen=True)
class InputsRecognisable(OfPairs):
    """Share of an origin's samples that came back above 20 dB, where people recognise a picture."""

    name: ClassVar[str] = "inputs-above-20db"
    title: ClassVar[str] = "Samples recognisable"
    perfect: ClassVar[float] = 1.0
    _is_share: ClassVar[bool] = True

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return (psnr(guessed, real) > RECOGNISABLE).double()


@final
@dataclass(frozen=True)
class InputsPsnr(OfPairs):
    """Peak signal-to-noise ratio in dB, at most 120, averaged over samples."""

    name: ClassVar[str] = "inputs-psnr"
    title: ClassVar[str] = "Similarity to the samples, PSNR in dB"
    paper: ClassVar[str] = "003"
    perfect: ClassVar[float] = CAP
    ends: ClassVar[Scale | None] = Scale(0.0, CAP)

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return psnr(guessed, real).clamp_min(0.0)


@final
@dataclass(frozen=True)
class InputsSsim(OfPairs):
    """Structural similarity (Wang et al. 2004) of images, from -1 to 1."""

    name: ClassVar[str] = "inputs-ssim"
    title: ClassVar[str] = "Similarity to the samples, SSIM"
    paper: ClassVar[str] = "003"
    perfect: ClassVar[float] = 1.0

    ends: ClassVar[Scale | None] = CORRELATION

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return ssim(guessed, real)


@final
@dataclass(frozen=True)
class InputsMse(OfPairs):
    """Mean squared error of inputs scaled to [0, 1]."""

    name: ClassVar[str] = "inputs-mse"
    title: ClassVar[str] = "Mean squared error of samples"
    paper: ClassVar[str] = "003"
    perfect: ClassVar[float] = 0.0
    higher: ClassVar[bool] = False
    ends: ClassVar[Scale | None] = Scale(1.0, 0.0)

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return mse(guessed, real)


@final
@dataclass(frozen=True)
class InputsLpips(OfPairs):
    """Perceptual distance LPIPS with AlexNet; needs its weights as lpips/alex.safetensors in the data folder."""

    name: ClassVar[str] = "inputs-lpips"
    title: ClassVar[str] = "Perceptual distance to the samples, LPIPS"
    paper: ClassVar[str] = "003"
    perfect: ClassVar[float] = 0.0
    higher: ClassVar[bool] = False

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return lpips(guessed, real, lpips_weights())


@final
@dataclass(frozen=True)
class CertificatePrecision(Metric[Inputs]):
    """Share of the samples that the attack vouches for which are above 30 dB; chance is that of all it returned."""

    name: ClassVar[str] = "certificate-precision"
    title: ClassVar[str] = "Certified samples that are right"
    guesses = Inputs
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Inputs, truth: Truth) -> Measured:
        origins = answered_origins(guess)
        real = real_inputs([guess.of[index] for index in origins], truth)
        span = Range.of(real)
        values, chance, trials, of = [], [], [], []
        for index, own in zip(origins, real, strict=True):
            right, certified = guess_psnr(guess.samples[index], own, span) > CLEAR, guess.certified[index]
            if bool(certified.any()):
                values.append(_vouched_right(guess, index, own, span).double().mean())
                chance.append(right.double().mean())
                trials.append(int(certified.sum()))
                of.append(guess.of[index])
        if not values:
            raise NotScored("the attack vouches for no sample")
        return Measured(torch.stack(values), torch.stack(chance), torch.tensor(trials), *clusters_of(of))


def _vouched_right(guess: Inputs, index: int, own: Tensor, span: Range) -> Tensor:
    """(k,) which samples that the attack vouches for are right, whatever else it returned beside them.

    A poor likeness without a certificate would be matched with the true sample where that costs others less.
    """
    return guess_psnr(guess.samples[index][guess.certified[index]], own, span) > CLEAR


def _proof(guess: Inputs, truth: Truth) -> Proof:
    """How many of the recorded samples the attack vouches for and has right, and how many it has wrong."""
    origins = answered_origins(guess)
    real = real_inputs([guess.of[index] for index in origins], truth)
    span, proven, refuted = Range.of(real), 0, 0
    for index, own in zip(origins, real, strict=True):
        right = _vouched_right(guess, index, own, span)
        # Two copies of one sample prove it once.
        proven += min(int(right.sum()), len(own))
        refuted += int((~right).sum())
    return Proof(proven, sum(len(own) for own in real), refuted)


def _uris(images: Tensor) -> list[str]:
    """PNG files as data: URIs; empty where inputs are no images."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        return []
    from PIL import Image

    uris = []
    for image in (images * 255).round().to(torch.uint8):
        pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(file, "PNG")
        uris.append(f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}")
    return uris
