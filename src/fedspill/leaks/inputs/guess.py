"""Inputs: what a reconstruction says of each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from fedspill.errors import AttackFailed
from fedspill.guess import Guess
from fedspill.trace import Origin


@final
@dataclass(frozen=True, eq=False)
class Inputs(Guess):
    """The data themselves: for each origin a stack of recovered samples (count, *shape), in no particular order.

    `certified` marks the samples that the attack vouches for by something it observed, never by the truth.
    `answered` is false where the attack gives nothing: refusing is better than a pretty picture.
    """

    of: Sequence[Origin]
    samples: Sequence[Tensor]
    certified: Sequence[Tensor]  # per origin (count,) bool
    answered: Tensor  # (origins,) bool
    labels: Sequence[Tensor] | None = None  # per origin (count,) int64: the class guessed for each sample
    notes: Sequence[str] = field(default_factory=tuple)
    groups: Sequence[Tensor] | None = None  # per origin (count,) int64: the same for samples of one client, -1 unknown

    def check(self) -> None:
        if not len(self.samples) == len(self.certified) == len(self.of):
            raise AttackFailed(f"Expected samples and certificates for {len(self.of)} origins.")
        if self.answered.dtype != torch.bool or self.answered.shape != (len(self.of),):
            raise AttackFailed("Expected a mark for each origin whether it is answered.")
        if self.groups is not None and [len(own) for own in self.groups] != [len(own) for own in self.samples]:
            raise AttackFailed("Expected a group for each sample.")
        for samples, certified in zip(self.samples, self.certified, strict=True):
            if certified.dtype != torch.bool or certified.shape != samples.shape[:1]:
                raise AttackFailed("Expected a mark for each sample whether it is certified.")
            if not bool(torch.isfinite(samples).all()):
                raise AttackFailed("Expected finite samples.")
