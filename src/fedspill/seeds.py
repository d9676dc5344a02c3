"""Random generators by purpose: the same seed and words give the same stream, whatever ran before or beside it."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from fedspill.errors import UsageError


def seed_of(seed: int, *words: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. seed_of(7, "client", round, index); one purpose, one number of words."""
    if seed < 0:
        raise UsageError(f"A seed is a whole number from 0 up, got {seed}.")
    entropy = [seed, *(word if isinstance(word, int) else zlib.crc32(word.encode()) for word in words)]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *words: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(seed, *words))
