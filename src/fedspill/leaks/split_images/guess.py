"""RebuiltImages: what the server of split learning says of the images behind its client's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.leaks.features.seen.answers import AskedSamples
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class RebuiltImages(Guess):
    """Images in the order of the embeddings; an origin is a round that these were sent in."""

    of: Sequence[Origin]
    images: Sequence[Tensor]  # of each round (samples, pixels), the first samples of its batch
    notes: Sequence[str] = field(default_factory=tuple)

    @staticmethod
    def behind(asked: AskedSamples, rows: Tensor) -> RebuiltImages:
        """Of rows (samples, pixels), one for each embedding."""
        return RebuiltImages(list(asked.of), list(torch.split(rows.float(), list(asked.sizes))), asked.notes)

    def check(self) -> None:
        if len(self.of) != len(self.images) or not self.images:
            raise AttackFailed(f"Expected images of each of {len(self.of)} rounds.")
        for images in self.images:
            if images.ndim != 2 or images.shape[1] != self.images[0].shape[1] or not len(images):
                raise AttackFailed(f"Expected images of shape (samples, pixels), got {tuple(images.shape)}.")
            if not bool(torch.isfinite(images).all()):
                raise AttackFailed("Expected finite images.")
