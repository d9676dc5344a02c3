"""PSNR of tiles as the authors of CAFE compute it (paper 001): clipped, per party's tile, averaged over tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.errors import NotScored
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.scoring.chance import baselines
from fedspill.leaks.inputs.scoring.pairs import answered_origins, real_inputs
from fedspill.leaks.inputs.scoring.similarity import CAP
from fedspill.messages import SERVER
from fedspill.metric import Measured, Metric, clusters_of
from fedspill.partitions.tiles import image_tiles
from fedspill.trace import Truth


def tile_psnr(guessed: Tensor, real: Tensor, parties: int) -> Tensor:
    """(n, parties) dB, at most 120, from images (n, c, h, w): the guess clipped to [0, 1], one value for each tile.

    Without the cap a black tile that is guessed black would count as infinitely good, as it does in the authors' code.
    """
    pairs = zip(image_tiles(guessed.double().clamp(0, 1), parties), image_tiles(real.double(), parties), strict=True)
    errors = torch.stack([(a - b).square().flatten(1).mean(1) for a, b in pairs], 1)
    return -10 * torch.log10(errors.clamp_min(10 ** (-CAP / 10)))


@final
@dataclass(frozen=True)
class TilePsnr(Metric[Inputs]):
    """Mean PSNR of tiles, sample by sample in index order: the server of a vertical federation knows which is which."""

    name: ClassVar[str] = "tile-psnr"
    title: ClassVar[str] = "Similarity of tiles, PSNR in dB"
    paper: ClassVar[str] = "001"
    guesses = Inputs
    perfect: ClassVar[float] = CAP

    parties: int = 4

    def measure(self, guess: Inputs, truth: Truth) -> Measured:
        origins = answered_origins(guess)
        of = [guess.of[index] for index in origins]
        real = real_inputs(of, truth)
        if any(origin.sender != SERVER for origin in of) or any(own.ndim != 4 for own in real):
            raise NotScored("tiles are of images in a vertical federation")
        values = []
        for index, own in zip(origins, real, strict=True):
            if guess.samples[index].shape != own.shape:
                raise NotScored(f"expected {tuple(own.shape)} in index order, got {tuple(guess.samples[index].shape)}")
            values.append(tile_psnr(guess.samples[index], own, self.parties).mean())
        tried = [
            torch.stack([tile_psnr(one, own, self.parties).mean() for one, own in zip(guesses, real, strict=True)])
            for guesses in baselines(of, real, truth).values()
        ]
        return Measured(torch.stack(values), max(tried, key=lambda these: float(these.mean())), None, *clusters_of(of))
