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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.data.base import Examples
from fedspill.errors import NothingToGuess, NotScored
from fedspill.evidence import Evidence, Images
from fedspill.guesses import Guess, Inputs
from fedspill.metrics.base import Measured, Metric
from fedspill.metrics.similarity import CAP, Range, lpips, lpips_weights, matched, mse, psnr, ssim
from fedspill.trace import Origin, Truth

CLEAR, RECOGNISABLE = 30.0, 20.0  # dB
ENOUGH = 2_000  # samples that class means and other samples are taken from
SHOWN = 8  # images in a report, with --show-data only


class OfPairs(Metric, ABC):
    """A value of pairs of images, averaged over an origin's true samples."""

    guesses = Inputs
    higher: ClassVar[bool] = True  # is better

    @abstractmethod
    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        """(n,) from guessed and real (n, *shape) in [0, 1], matched."""

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        assert isinstance(guess, Inputs)
        origins = answered(guess)
        real = real_inputs([guess.of[index] for index in origins], truth)
        span = Range.of(real)
        values = [self._value(guess.samples[i], own, span) for i, own in zip(origins, real, strict=True)]
        best = self._best_baseline([guess.of[index] for index in origins], real, truth, span)
        return Measured(torch.stack(values), best, torch.tensor([len(own) for own in real]) if self._is_share else None)

    _is_share: ClassVar[bool] = False

    def _value(self, samples: Tensor, real: Tensor, span: Range) -> Tensor:
        """The mean over true samples; of more guesses than samples, the surplus counts against it in a share."""
        pairs = paired(samples, real, span)
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

    def evidence(self, guess: Guess, truth: Truth, *, private: bool) -> list[Evidence]:
        assert isinstance(guess, Inputs)
        if not private:
            return []
        index = next((i for i in answered(guess) if len(guess.samples[i])), None)
        if index is None:
            return []
        (real,) = real_inputs([guess.of[index]], truth)
        span = Range.of([real])
        shown = [
            _uris(images) for images in (span.unit(real)[:SHOWN], paired(guess.samples[index], real, span)[:SHOWN])
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

    def of_pairs(self, guessed: Tensor, real: Tensor) -> Tensor:
        return psnr(guessed, real)


@final
@dataclass(frozen=True)
class InputsSsim(OfPairs):
    """Structural similarity (Wang et al. 2004) of images, from -1 to 1."""

    name: ClassVar[str] = "inputs-ssim"
    title: ClassVar[str] = "Similarity to the samples, SSIM"
    paper: ClassVar[str] = "003"
    perfect: ClassVar[float] = 1.0

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
class CertificatePrecision(Metric):
    """Share of the samples that the attack vouches for which are above 30 dB; chance is that of all it returned."""

    name: ClassVar[str] = "certificate-precision"
    title: ClassVar[str] = "Certified samples that are right"
    guesses = Inputs
    perfect: ClassVar[float] = 1.0

    def measure(self, guess: Guess, truth: Truth) -> Measured:
        assert isinstance(guess, Inputs)
        origins = answered(guess)
        real = real_inputs([guess.of[index] for index in origins], truth)
        span = Range.of(real)
        values, chance, trials = [], [], []
        for index, own in zip(origins, real, strict=True):
            right, certified = quality(guess.samples[index], own, span) > CLEAR, guess.certified[index]
            if bool(certified.any()):
                values.append(right[certified].double().mean())
                chance.append(right.double().mean())
                trials.append(int(certified.sum()))
        if not values:
            raise NotScored("the attack vouches for no sample")
        return Measured(torch.stack(values), torch.stack(chance), torch.tensor(trials))


def answered(guess: Inputs) -> list[int]:
    """The origins that the attack answers for."""
    found = [index for index, yes in enumerate(guess.answered.tolist()) if yes]
    if not found:
        why = f": {guess.notes[-1]}" if guess.notes else ""
        raise NothingToGuess(f"the attack does not apply to what was observed{why}")
    return found


def real_inputs(of: Sequence[Origin], truth: Truth) -> list[Tensor]:
    """The true samples of each origin."""
    for origin in of:
        if not truth.has(origin, "inputs"):
            raise NotScored(
                f"the samples of {origin.sender} in round {origin.round} are not at hand: recordings do not hold inputs"
            )
    return [truth.get(origin, "inputs") for origin in of]


def paired(samples: Tensor, real: Tensor, span: Range) -> Tensor:
    """(n, *shape) in [0, 1]: for each true sample the guessed one matched with it, grey where there is none."""
    if samples.numel() and samples[0].numel() != real[0].numel():
        raise NotScored(f"guessed samples have shape {tuple(samples.shape[1:])}, true ones {tuple(real.shape[1:])}")
    found = span.unit(samples.reshape(len(samples), *real.shape[1:]))
    order = matched(found, span.unit(real))
    grey = torch.full_like(real, 0.5, dtype=torch.float64)
    return torch.stack([found[i] if i >= 0 else grey[n] for n, i in enumerate(order.tolist())])


def quality(samples: Tensor, real: Tensor, span: Range) -> Tensor:
    """(k,) PSNR of each guessed sample against the true one matched with it; 0 for the surplus."""
    order = matched(span.unit(samples.reshape(len(samples), *real.shape[1:])), span.unit(real))
    values = psnr(paired(samples, real, span), span.unit(real))
    result = torch.zeros(len(samples), dtype=torch.float64)
    result[order[order >= 0]] = values[order >= 0]
    return result


def baselines(of: Sequence[Origin], real: Sequence[Tensor], truth: Truth) -> dict[str, list[Tensor]]:
    """What can be returned without access, for each origin as many samples as it has."""
    span = Range.of(list(real))
    result = {"grey": [torch.full_like(own, (span.low + span.high) / 2) for own in real]}
    pool = _some_of(truth.clients) if truth.clients else None
    every = torch.cat(list(real)) if pool is None else pool.x
    rng = torch.Generator().manual_seed(0)
    if len(every) > 1:
        result["random"] = [_others(own, every, rng) for own in real]
    if pool is not None and all(truth.has(origin, "input_labels") for origin in of):
        labels = [truth.get(origin, "input_labels") for origin in of]
        result["class mean"] = [_class_means(own, y, pool) for own, y in zip(real, labels, strict=True)]
    return result


def _some_of(clients: Sequence[Examples]) -> Examples:
    """All samples of the clients, or enough of them to know means by."""
    pool = Examples.join(list(clients)).to("cpu")
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))
    return pool.take(order[:ENOUGH])


def _not_in(own: Tensor, every: Tensor) -> Tensor:
    """(len(every),) which samples are none of the origin's own."""
    return ~(torch.cdist(every.flatten(1).double(), own.flatten(1).double()) < 1e-6).any(1)


def _others(own: Tensor, every: Tensor, rng: torch.Generator) -> Tensor:
    """(n, *shape) random samples of `every` other than the origin's own; their mean where there are none."""
    free = every[_not_in(own, every)]
    if not len(free):
        return every.mean(0, keepdim=True).expand_as(own)
    return free[torch.randint(len(free), (len(own),), generator=rng)]


def _class_means(own: Tensor, labels: Tensor, pool: Examples) -> Tensor:
    """(n, *shape) the mean of all samples of the class but the origin's own; grey if there are no others."""
    free = _not_in(own, pool.x)
    means = []
    for label in labels.tolist():
        others = pool.x[free & (pool.y == label)]
        means.append(others.mean(0) if len(others) else torch.full_like(own[0], 0.5))
    return torch.stack(means)


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
